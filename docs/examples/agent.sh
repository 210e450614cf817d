#!/bin/sh
# An agent that any command line model can take the place of: the brief comes on standard input, the answer goes to standard output.
brief=$(cat)
printf 'Seen %s lines of brief for task %s.\n' "$(printf '%s\n' "$brief" | wc -l | tr -d ' ')" "$PARLEY_TASK_ID"
