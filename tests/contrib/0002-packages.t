#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# While packages are installed no service starts, and afterwards the machine's own policy is back.
# shellcheck source=../tap.sh
. "${0%/*}/../tap.sh"
# shellcheck source=../../contrib/lib-packages.sh
. "$FL_SOURCE_DIR/contrib/lib-packages.sh"

[ "$(id -u)" -eq 0 ] || skip_all "needs root"
WORK=$(mktemp -d)
policy=$WORK/policy-rc.d policy_kept=$WORK/kept

services_hold
run "$policy" munge start
is "$status" 101 "services are kept from starting"
services_release
ok "and the policy is gone" [ ! -e "$policy" ]

echo "the machine's own" >"$policy"
chmod 700 "$policy"
services_hold
run "$policy" munge start
is "$status" 101 "a policy of the machine's own is set aside"
services_release
is "$(cat "$policy") $(stat -c %a "$policy")" "the machine's own 700" "and put back as it was"

services_hold
# As a killed run would leave it: held, and nobody to release it.
services_held=no
exec 8>&-
services_hold
services_release
is "$(cat "$policy")" "the machine's own" "what a killed run left is not taken for the machine's own"

services_release
is "$(cat "$policy")" "the machine's own" "a release without a hold changes nothing"

run packages_install "$WORK/log" bash coreutils
is "$status,$out" "0," "packages that are there are not installed again"
done_testing
