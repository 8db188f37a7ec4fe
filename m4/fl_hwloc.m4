# SPDX-License-Identifier: Apache-2.0
# FL_HWLOC: topology of cores, NUMA nodes and GPUs.
AC_DEFUN([FL_HWLOC], [
  PKG_CHECK_MODULES([HWLOC], [hwloc >= 2.4], [],
    [AC_MSG_ERROR([hwloc not found: install libhwloc-dev])])
])
