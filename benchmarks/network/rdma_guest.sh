#!/usr/bin/env bash
# The part of the benchmark `rdma` that runs in the guest: rdma_guest.sh BUILD ROUNDS BATCHES
# FILE_64K FILE_4K. Prints "bench-ARM VALUE" for each arm and round; rdma.py says what they are.
set -euo pipefail
build=$1 rounds=$2 batches=$3
declare -A file=([64k]=$4 [4k]=$5) size=([64k]=65536 [4k]=4096) batch=([64k]=64 [4k]=256)
declare -A depth=([64k]=16 [4k]=128) times=([64k]=1 [4k]=4)
arm=$build/benchmarks/daemon-arm
ticks=$(getconf CLK_TCK)

"$build/server/ffrecordd" --data /tmp/bench-data --listen 127.0.0.1:9400 --transport rdma \
  --rdma-devices rxe0 \
  >/tmp/daemon.log 2>&1 &
daemon=$!
until grep -q event=ready /tmp/daemon.log; do sleep 0.1; done
for kind in 64k 4k; do
  "$arm" publish "${file[$kind]}" "ffrecord://127.0.0.1:9400/$kind?transport=tcp" >&2
done

process_ticks() { awk '{ print $14 + $15 }' "/proc/$daemon/stat"; }
machine_ticks() { awk '/^cpu / { print $2 + $3 + $4 + $7 + $8 }' /proc/stat; }
field() { sed -E "s/.*\"$1\": ([0-9.]+).*/\1/" <<<"$2"; }

# reads TRANSPORT KIND ROUND
reads() {
  local of_daemon of_machine out
  of_daemon=$(process_ticks) of_machine=$(machine_ticks)
  out=$("$arm" read "ffrecord://127.0.0.1:9400/$2?transport=$1&rdma_devices=rxe0" \
    $((batches * ${times[$2]})) "${batch[$2]}" "$3")
  awk -v name="$1_$2" -v records="$(field records "$out")" -v seconds="$(field seconds "$out")" \
    -v bytes="$(field bytes "$out")" -v client="$(field cpu_seconds "$out")" \
    -v daemon="$(($(process_ticks) - of_daemon))" -v ticks="$ticks" \
    -v machine="$(($(machine_ticks) - of_machine))" 'BEGIN {
      printf "bench-%s %.3f\n", name, records / seconds
      if (name !~ /64k/) exit
      printf "bench-%s_cpu %.6f\n", name, (client + daemon / ticks) / bytes * 1e9
      printf "bench-%s_machine_cpu %.6f\n", name, machine / ticks / bytes * 1e9
    }'
}

# perftest KIND: messages per second; nothing where perftest is not installed.
perftest() {
  command -v ib_write_bw >/dev/null || return 0
  local words=(ib_write_bw -d rxe0 -x 1 -F -s "${size[$1]}" -t "${depth[$1]}"
    -n $((batches * ${times[$1]} * ${batch[$1]})))
  "${words[@]}" >/tmp/perftest-server.log 2>&1 &
  local server=$! out
  until out=$("${words[@]}" 10.77.0.1 2>&1); do sleep 0.2; done
  wait $server
  awk -v name="perftest_$1" '$1 ~ /^[0-9]+$/ && NF == 5 { rate = $5 }
    END { printf "bench-%s %.3f\n", name, rate * 1e6 }' <<<"$out"
}

for ((round = 0; round < rounds; ++round)); do
  for kind in 64k 4k; do
    reads rdma $kind $round
    perftest $kind
    reads tcp $kind $round
  done
done
kill $daemon
