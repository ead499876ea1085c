#!/bin/sh
# A drill: restores the newest generation of a replica to a new file, checks it, and removes it again. Run it regularly,
# such as by cron, and look at its status: 0 means that the replica can be restored now.
# Usage: restore_drill.sh URL [DIRECTORY], with space for the database in the directory (default: the temporary one).
set -eu
url=${1:?URL of the replica}
directory=$(mktemp -d "${2:-${TMPDIR:-/tmp}}/statflight-drill.XXXXXX")
trap 'rm -rf "$directory"' EXIT
began=$(date +%s)
statflight restore "$url" "$directory/stats.duckdb"
statflight doctor --db "$directory/stats.duckdb"
echo "restored and checked $(du -h "$directory/stats.duckdb" | cut -f1) in $(($(date +%s) - began)) s"
