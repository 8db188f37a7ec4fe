# SPDX-License-Identifier: Apache-2.0
# FL_OPENMP: threads of the CPU backend. clang needs libomp-dev.
AC_DEFUN([FL_OPENMP], [
  AC_OPENMP
  AS_IF([test -z "$OPENMP_CFLAGS"],
    [AC_MSG_ERROR([$CC has no OpenMP: use gcc, or install libomp-dev for clang])])
])
