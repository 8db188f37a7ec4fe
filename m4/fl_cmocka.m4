# SPDX-License-Identifier: Apache-2.0
# FL_CMOCKA: unit tests; without it `make check` says so.
AC_DEFUN([FL_CMOCKA], [
  PKG_CHECK_MODULES([CMOCKA], [cmocka], [fl_have_cmocka=yes], [fl_have_cmocka=no])
  AM_CONDITIONAL([HAVE_CMOCKA], [test "x$fl_have_cmocka" = xyes])
])
