#!/usr/bin/env bash
# The part of the benchmark `rdma` that runs in two guests: rdma_pair.sh BUILD ROUNDS RANK. Rank 0
# prints "bench-ARM VALUE" for each arm and round; rdma.py says what they are.
set -euo pipefail
build=$1 rounds=$2 rank=$3
bytes=$((4 << 20)) message_bytes=65536
host=10.77.0.$((rank + 1))

print() { if ((rank == 0)); then echo "bench-reduce_$1 $2"; fi; }

# reduces TRANSPORT ROUND: all-reduces per second.
reduces() {
  local out
  out=$("$build/benchmarks/reduce-arm" "$1" $bytes 9 "$rank" "$host" "/mnt/out/reduce-$1-$2")
  print "$1" "$(sed -E 's/.*"seconds": ([0-9.]+).*/\1/' <<<"$out" | awk '{ printf "%.3f", 1 / $1 }')"
}

# What two ranks need at least for one is the time in which so much goes both ways. Nothing where
# perftest is not installed.
both_ways() {
  command -v ib_write_bw >/dev/null || return 0
  local words=(ib_write_bw -b -d rxe0 -x 1 -F -s $message_bytes -t 16 -n 1000) out
  if ((rank == 0)); then
    out=$("${words[@]}" 2>&1)
  else
    # Refused until the server listens.
    until out=$("${words[@]}" 10.77.0.1 2>&1); do sleep 0.2; done
  fi
  print bound "$(awk -v bytes=$bytes -v message=$message_bytes '
    $1 ~ /^[0-9]+$/ && NF == 5 { rate = $5 }
    END { printf "%.3f", rate * 1e6 * message / (2 * bytes) }' <<<"$out")"
}

for ((round = 0; round < rounds; ++round)); do
  reduces rdma $round
  both_ways
  reduces tcp $round
done
