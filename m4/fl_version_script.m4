# SPDX-License-Identifier: Apache-2.0
# FL_VERSION_SCRIPT: the plugin exports the SPANK symbols only.
AC_DEFUN([FL_VERSION_SCRIPT], [
  AC_MSG_CHECKING([whether the linker takes -Wl,--version-script])
  fl_saved_LDFLAGS=$LDFLAGS
  echo "{ global: main; local: *; };" > conftest.map
  LDFLAGS="$LDFLAGS -Wl,--version-script=conftest.map"
  AC_LINK_IFELSE([AC_LANG_PROGRAM([], [])],
    [AC_MSG_RESULT([yes])],
    [AC_MSG_RESULT([no])
     AC_MSG_ERROR([the plugin needs a linker with version scripts: use GNU ld or lld])])
  LDFLAGS=$fl_saved_LDFLAGS
  rm -f conftest.map
])
