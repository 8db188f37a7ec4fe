# SPDX-License-Identifier: Apache-2.0
# FL_SLURM: headers, libslurm, version and plugin folder of the Slurm the plugin is built for.
# Slurm refuses a plugin of another version, so the version is part of the build.
AC_DEFUN([FL_SLURM], [
  AC_ARG_WITH([slurm-plugindir],
    [AS_HELP_STRING([--with-slurm-plugindir=DIR], [Slurm's plugin folder (default: libdir/slurm-wlm or libdir/slurm, where spank finds plugins)])],
    [], [with_slurm_plugindir=])
  PKG_CHECK_MODULES([SLURM], [slurm >= 22.05], [],
    [AC_CHECK_HEADER([slurm/spank.h], [SLURM_LIBS=-lslurm],
      [AC_MSG_ERROR([slurm/spank.h not found: install libslurm-dev (Debian) or slurm-devel (RPM)])])])
  AC_MSG_CHECKING([for Slurm's version])
  AC_COMPUTE_INT([fl_slurm_major], [SLURM_VERSION_MAJOR(SLURM_VERSION_NUMBER)], [[#include <slurm/slurm.h>]],
    [AC_MSG_ERROR([cannot read SLURM_VERSION_NUMBER from slurm/slurm.h: install the Slurm headers])])
  AC_COMPUTE_INT([fl_slurm_minor], [SLURM_VERSION_MINOR(SLURM_VERSION_NUMBER)], [[#include <slurm/slurm.h>]])
  fl_slurm_version=$(printf '%d.%02d' $fl_slurm_major $fl_slurm_minor)
  AC_MSG_RESULT([$fl_slurm_version])
  AC_MSG_CHECKING([for Slurm's plugin folder])
  AS_IF([test -n "$with_slurm_plugindir"], [SLURM_PLUGIN_DIR=$with_slurm_plugindir],
    [fl_slurm_libdir=$($PKG_CONFIG --variable=libdir slurm 2>/dev/null)
     test -n "$fl_slurm_libdir" || fl_slurm_libdir=/usr/lib/$($CC -print-multiarch)
     SLURM_PLUGIN_DIR=$fl_slurm_libdir/slurm
     for d in "$fl_slurm_libdir/slurm-wlm" "$fl_slurm_libdir/slurm"; do
       test -d "$d" && { SLURM_PLUGIN_DIR=$d; break; }
     done])
  AC_MSG_RESULT([$SLURM_PLUGIN_DIR])
  AC_MSG_CHECKING([whether slurm_kill_job_step takes flags])
  AC_COMPILE_IFELSE([AC_LANG_PROGRAM([[#include <slurm/slurm.h>]], [[return slurm_kill_job_step(1, 0, 9, 0);]])],
    [AC_MSG_RESULT([yes])
     AC_DEFINE([HAVE_SLURM_KILL_FLAGS], [1], [Define when slurm_kill_job_step takes flags, as in newer Slurm.])],
    [AC_MSG_RESULT([no])])
  AC_SUBST([SLURM_PLUGIN_DIR])
])
