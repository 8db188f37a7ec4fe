#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Placement on real machines' topologies, as hwloc's own tests have them.
if [ -z "${FL_HWLOC_TOPOLOGIES:-}" ]; then
    echo "1..0 # SKIP FL_HWLOC_TOPOLOGIES is not set: contrib/fetch-hwloc-topologies gets them"
    exit 0
fi
exec "${FL_BUILD_DIR:-.}/tests/unit/test_place" hwloc
