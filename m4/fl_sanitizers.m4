# SPDX-License-Identifier: Apache-2.0
# FL_SANITIZERS: --enable-sanitizers builds everything with AddressSanitizer and UBSan.
# clang warns of loops that are no vector code any more with the checks in them; that is expected.
AC_DEFUN([FL_SANITIZERS], [
  AC_ARG_ENABLE([sanitizers],
    [AS_HELP_STRING([--enable-sanitizers], [build with AddressSanitizer and UndefinedBehaviorSanitizer])],
    [], [enable_sanitizers=no])
  AS_IF([test "x$enable_sanitizers" = xyes],
    [FL_CFLAGS="$FL_CFLAGS -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -Wno-pass-failed"])
  AM_CONDITIONAL([SANITIZERS], [test "x$enable_sanitizers" = xyes])
])
