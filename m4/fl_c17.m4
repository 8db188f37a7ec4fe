# SPDX-License-Identifier: Apache-2.0
# FL_C17: compile as GNU C17.
AC_DEFUN([FL_C17], [
  AC_SYS_LARGEFILE
  fl_saved_CFLAGS=$CFLAGS
  AC_MSG_CHECKING([whether $CC accepts -std=gnu17])
  CFLAGS="$CFLAGS -std=gnu17"
  AC_COMPILE_IFELSE([AC_LANG_PROGRAM([[_Static_assert(__STDC_VERSION__ >= 201710L, "C17");]])],
    [AC_MSG_RESULT([yes])],
    [AC_MSG_RESULT([no])
     AC_MSG_ERROR([fp8-lora needs a C17 compiler: install gcc 8 or clang 7, or newer])])
  CFLAGS=$fl_saved_CFLAGS
  FL_CFLAGS="-std=gnu17 -fno-common -fvisibility=hidden"
  AC_SUBST([FL_CFLAGS])
])
