#!/usr/bin/env bash
# A run on several nodes under Slurm:
#
#     sbatch --nodes 2 examples/cluster/slurm.sh recipes/edlm-8b-qwen3-30b.yaml
#
# More options of the recipe may follow its name. Slurm starts one torchrun on each node, and these start the processes
# that train, PER_NODE on each (default: one for each GPU). If the job was cut off and is put in the queue again, the run
# goes on from its newest whole checkpoint. The folder of the run must be one that all nodes see.
#SBATCH --job-name=forkleft
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --time=24:00:00
#SBATCH --requeue
# Before the time limit, time to finish an update or an evaluation, and save (docs/scale.md).
#SBATCH --signal=TERM@600
#SBATCH --output=forkleft-%j.log
set -euo pipefail

recipe=${1:?the recipe to train, such as recipes/edlm-8b-qwen3-30b.yaml}
shift
per_node=${PER_NODE:-${SLURM_GPUS_ON_NODE:-8}}
# The first node of the job is where all others meet; jobs that share it get different ports.
# The names are read whole: `| head` may leave before scontrol has written all, and pipefail ends the job then.
nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${nodes%%$'\n'*}
port=$((20000 + SLURM_JOB_ID % 10000))
if [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ]; then
  set -- "$@" --resume_from_checkpoint true
fi
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-8}
# How long torchrun waits for its processes to save, once it was asked to end.
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=${TORCH_ELASTIC_SHUTDOWN_TIMEOUT:-600}
# --kill-on-bad-exit: if one node fails, the job ends, instead of waiting for the others.
srun --kill-on-bad-exit=1 torchrun \
  --nnodes "$SLURM_JOB_NUM_NODES" --nproc-per-node "$per_node" \
  --rdzv-backend c10d --rdzv-endpoint "$head:$port" --rdzv-id "$SLURM_JOB_ID" \
  -m forkleft train --config "$recipe" "$@"
