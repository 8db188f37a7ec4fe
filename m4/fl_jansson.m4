# SPDX-License-Identifier: Apache-2.0
# FL_JANSSON: JSON.
AC_DEFUN([FL_JANSSON], [
  PKG_CHECK_MODULES([JANSSON], [jansson >= 2.14], [], [AC_MSG_ERROR([jansson not found: install libjansson-dev])])
])
