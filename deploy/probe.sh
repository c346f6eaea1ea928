#!/bin/sh
#SBATCH --job-name=advisor-probe
#SBATCH --nodes=1
#SBATCH --output=advisor-probe-%j.out
# A job to try the advisor with: its first attempt prints what a bad GPU makes a program print, and fails.
# Submit it with --comment '{"advisor": {"enabled": true}}'; restarted, it ends well.
echo "probe: attempt ${SLURM_RESTART_COUNT:-0} on $(uname -n)"
if [ "${SLURM_RESTART_COUNT:-0}" = 0 ]; then
  sleep 2
  echo "RuntimeError: CUDA error: uncorrectable ECC error encountered" >&2
  exit 1
fi
echo "probe: well"
