#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The private cluster does what the other tests stand on: users, GPUs, MPI, two nodes, accounting.
# shellcheck source=lib.sh
. "${0%/*}/lib.sh"

job_run id -u
is "$status" 0 "a job runs"
is "$out" "$(id -u "$DEVCLUSTER_USER")" "as the ordinary user"
ok "who is not root" [ "$out" -ne 0 ]
ok "accounting has its end" job_recorded "$job"
is "$(job_field "$job" User,State,ExitCode)" "$DEVCLUSTER_USER|COMPLETED|0:0" "as the user's own sacct shows"

job_run false
is "$status" 1 "a failing command's status is srun's"
ok "accounting has the failure" job_recorded_as "$job" State,ExitCode '^FAILED\|1:0$'

job_run --gres=gpu:4 bash -c 'echo $CUDA_VISIBLE_DEVICES'
is "$out" 0,1,2,3 "four GPUs are assigned"
ok "and accounted" job_recorded_as "$job" AllocTRES 'gres/gpu=4'
job_run --immediate=5 --gres=gpu:$((DEVCLUSTER_GPUS + 1)) true
like "$err" 'Requested node configuration is not available' "more GPUs than a node has are refused"

run as_admin sacctmgr -i modify job where jobid="$job" set admincomment="seen by its owner"
ok "an administrator's comment is seen by the job's owner" job_recorded_as "$job" AdminComment 'seen by its owner'

cat >"$WORK/hello.c" <<'END'
#include <mpi.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    int rank, ranks, sum;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    printf("rank %d of %d: %d\n", rank, ranks, sum);
    return MPI_Finalize();
}
END
run mpicc -o "$WORK/hello" "$WORK/hello.c"
is "$status" 0 "an MPI program builds"
job_run --nodes=1 --ntasks=4 --mpi=pmix "$WORK/hello"
is "$(sort "$WORK/out")" $'rank 0 of 4: 6\nrank 1 of 4: 6\nrank 2 of 4: 6\nrank 3 of 4: 6' "four ranks meet on one node"

if ((DEVCLUSTER_NODES >= 2)); then
    job_run --nodes=2 bash -c 'echo $SLURMD_NODENAME'
    is "$(sort "$WORK/out")" $'n0\nn1' "a step spans two nodes"
    job_run --nodes=2 --ntasks=4 --mpi=pmix "$WORK/hello"
    is "$(sort "$WORK/out" | tail -n 1)" "rank 3 of 4: 6" "four ranks meet across two nodes"
else
    skip "a step spans two nodes" "one node"
    skip "four ranks meet across two nodes" "one node"
fi
done_testing
