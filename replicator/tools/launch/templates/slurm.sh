#!/bin/bash
# One run on {{ nodes }} nodes, one process on each. To submit it: sbatch {{ file }}
#SBATCH --job-name={{ name }}
#SBATCH --nodes={{ nodes }}
#SBATCH --ntasks-per-node=1
#SBATCH --output={{ name }}-%j.out
#SBATCH --open-mode=append
# Before the time limit, all processes are asked to save. The job is then queued again.
#SBATCH --signal=TERM@{{ grace }}
#SBATCH --requeue
{% for each in option %}
#SBATCH {{ each }}
{% endfor %}
cd {{ folder }} || exit 1
trap : TERM  # The processes get it, too: this script waits until they have saved.

for restarts_left in {{ range(max_restarts, -1, -1) | join(" ") }}; do
  # Processes that are still saving are not killed when the first one ends.
  srun --distribution=block --kill-on-bad-exit=0 --label {{ shell_line }}
  status=$?
  case $status in
    0 | {{ usage }}) exit $status ;;
    {{ preempted }} | 143)  # Asked to stop: it saved, or had nothing to save yet.
      for attempt in 1 2 3 4 5; do  # Slurm may not answer at once.
        state=$(squeue --noheader --format=%T --job="$SLURM_JOB_ID") && break
        sleep 5
      done
      if [ "$state" = RUNNING ]; then
        exec scontrol requeue "$SLURM_JOB_ID"
      fi
      exit $status ;;  # The job was canceled, or Slurm itself queues it again.
  esac
  echo "the processes ended with status $status; restarts left: $restarts_left" >&2
done
exit $status
