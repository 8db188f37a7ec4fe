# SPDX-License-Identifier: Apache-2.0
# FL_WARNINGS: --enable-werror turns warnings into errors (continuous integration does).
# Errors and names go to fixed buffers where cutting is meant, so gcc's format-truncation is off.
# A loop marked simd stays scalar under sanitizers, so clang's pass-failed is off.
AC_DEFUN([FL_WARNINGS], [
  AC_ARG_ENABLE([werror], [AS_HELP_STRING([--enable-werror], [treat compiler warnings as errors])],
    [], [enable_werror=no])
  FL_WARN_CFLAGS="-Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wwrite-strings -Wvla -Wformat=2"
  fl_saved_CFLAGS=$CFLAGS
  CFLAGS="$CFLAGS -Werror -Wno-format-truncation"
  AC_COMPILE_IFELSE([AC_LANG_PROGRAM([], [])], [FL_WARN_CFLAGS="$FL_WARN_CFLAGS -Wno-format-truncation"])
  CFLAGS="$fl_saved_CFLAGS -Werror -Wno-pass-failed"
  AC_COMPILE_IFELSE([AC_LANG_PROGRAM([], [])], [FL_WARN_CFLAGS="$FL_WARN_CFLAGS -Wno-pass-failed"])
  CFLAGS=$fl_saved_CFLAGS
  AS_IF([test "x$enable_werror" = xyes], [FL_WARN_CFLAGS="$FL_WARN_CFLAGS -Werror"])
  AC_SUBST([FL_WARN_CFLAGS])
])
