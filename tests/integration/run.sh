#!/usr/bin/env bash
# Runs one Python test file that stands beside this script, in place of this shell.
exec python3 -B "$@"
