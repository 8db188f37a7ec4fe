# SPDX-License-Identifier: Apache-2.0
# FL_BLAS: OpenBLAS, the matrix products of the CPU backend.
AC_DEFUN([FL_BLAS], [
  PKG_CHECK_MODULES([BLAS], [openblas], [], [AC_MSG_ERROR([OpenBLAS not found: install libopenblas-openmp-dev])])
])
