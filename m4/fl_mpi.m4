# SPDX-License-Identifier: Apache-2.0
# FL_MPI: ranks of the CPU backend; without MPI it runs one rank.
AC_DEFUN([FL_MPI], [
  PKG_CHECK_MODULES([MPI], [ompi-c], [fl_have_mpi=yes],
    [PKG_CHECK_MODULES([MPI], [mpich], [fl_have_mpi=yes], [fl_have_mpi=no])])
  AS_IF([test "x$fl_have_mpi" = xyes], [AC_DEFINE([HAVE_MPI], [1], [MPI for ranks of the CPU backend])])
  AM_CONDITIONAL([HAVE_MPI], [test "x$fl_have_mpi" = xyes])
])
