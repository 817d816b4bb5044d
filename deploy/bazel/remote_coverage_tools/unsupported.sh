#!/bin/sh
echo "coverage: not supported by this offline build; use gcov directly" >&2
exit 1
