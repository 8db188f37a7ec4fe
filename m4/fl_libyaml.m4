# SPDX-License-Identifier: Apache-2.0
# FL_LIBYAML: job.yaml.
AC_DEFUN([FL_LIBYAML], [
  PKG_CHECK_MODULES([YAML], [yaml-0.1], [], [AC_MSG_ERROR([libyaml not found: install libyaml-dev])])
])
