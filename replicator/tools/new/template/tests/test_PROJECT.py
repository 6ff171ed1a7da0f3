"""Tests that the experiment trains the same on any number of replicas, and resumes bit for bit."""

import subprocess
import sys

import pytest

EXPERIMENT = ["--experiment=experiments.PROJECT", "--gin_file=PROJECT.gin"]


@pytest.mark.parametrize("words", [["--steps=3"], ["--check_resume"]])
def test_the_doctor_finds_nothing(words):
  done = subprocess.run([sys.executable, "-m", "replicator", "doctor", *EXPERIMENT, *words],
                        capture_output=True, text=True)
  assert done.returncode == 0, done.stdout + done.stderr
