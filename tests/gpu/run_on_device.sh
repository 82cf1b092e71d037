#!/usr/bin/env bash
# Runs everything that `./dev gpu-test` built on a machine with a GPU, in one go, and leaves logs and receipts in $OUT
# (default: build/gpu-test/out). Needs build/gpu-test/gpu_test.gz and this source tree; nothing is built or fetched.
#   tests/gpu/run_on_device.sh [--filter GTEST_FILTER] [--sanitize] [--repeat N] [--bench | --bench-only]
# --bench measures after the tests (gpu_bench, under 4 minutes): a table at the end, gpu_bench.json and start_*.json in $OUT.
# --sanitize runs a part of the tests under each of compute-sanitizer's tools, too, all at the same time (it wants a
# runtime on which they work: they refuse the device under gVisor). A tool that runs longer than TANDEM_SANITIZE_SECONDS
# (330) is ended and counts as a failure, one that cannot run here is said so and counts as a failure, too.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1

filter='*' sanitize=0 repeat=1 bench=0 tests=1
while (($#)); do
  case "$1" in
    --filter) filter=${2:?--filter wants a pattern}; shift ;;
    --repeat) repeat=${2:?--repeat wants a number}; shift ;;
    --sanitize) sanitize=1 ;;
    --bench) bench=1 ;;
    --bench-only) bench=1 tests=0 ;;
    *) echo "usage: $0 [--filter GTEST_FILTER] [--sanitize] [--repeat N] [--bench | --bench-only]" >&2; exit 2 ;;
  esac
  shift
done

out=${OUT:-build/gpu-test/out}
mkdir -p "$out"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
program=$scratch/gpu_test
gzip -dc build/gpu-test/gpu_test.gz >"$program" && chmod +x "$program" || exit 1
export TANDEM_TEST_SOURCE_DIR=$PWD
cache=${TANDEM_KERNEL_CACHE:-/tmp/tandem-kernels}

# What was run, where: figures without this are not receipts.
{
  echo "commit: $(cat build/gpu-test/commit)"
  echo "program: $(sha256sum <"$program" | cut -d' ' -f1)"
  echo "date: $(date -u +%FT%TZ)"
  echo "kernel: $(uname -sr)"
  echo "libc: $(ldd --version 2>/dev/null | head -n 1)"
  nvidia-smi --query-gpu=name,driver_version,memory.total,memory.used,clocks.sm,clocks.mem,power.limit --format=csv
} >"$out/receipt.txt" 2>&1
cat "$out/receipt.txt"

run() { "$@" --cache-dir "$cache" "--gtest_filter=$filter"; }

status=0
if ((tests)); then
start=$SECONDS
run "$program" "--gtest_output=json:$out/gpu_test.json" "--gtest_repeat=$repeat" 2>&1 | tee "$out/gpu_test.log" |
  grep -Ev '^\[ (RUN|      OK) |^\[-+\]'
((PIPESTATUS[0] == 0)) || status=1
echo "tests: $((SECONDS - start)) s" | tee -a "$out/receipt.txt"
fi

# What a tool watches: every operation at the emulator's sizes, and the whole model's steps, graphs, kept states and
# copies that run beside the host. Left out are tests of the driver's errors (memcheck reports those), of what takes
# minutes already without a tool, and the loading of every kernel there is.
operations='*-*Nano*:*RealModel*:*Golden*:*Mixes*:*SampleInStepOnRanks*:RealGpu.*'
driver='RealGpu.CopiesAndFills:RealGpu.PinnedMemory*:RealGpu.AGraphRepeats*'
all_steps="Caches/NanoOnGpu.*:Caches/RealModelOnGpu.Chunks*:SampleInStepOnRanks.*:$driver"
some_steps="Caches/NanoOnGpu.OneArithmeticARow/bf16:Caches/NanoOnGpu.KeptStates*/fp8:$driver"

# sanitize NAME FILTER TOOL [OPTION...]: one tool in the background of this shell, with its log and a line of receipt.
sanitize() {
  local name=$1 part=$2 tool=$3 from=$SECONDS code said passed
  shift 3
  TANDEM_SMALL_GPU_TESTS=1 timeout "${TANDEM_SANITIZE_SECONDS:-330}" compute-sanitizer --tool "$tool" \
    --error-exitcode 9 "$@" "$program" --cache-dir "$cache" "--gtest_filter=$part" >"$out/$name.log" 2>&1
  code=$?
  said=$(grep -E '^=+ (ERROR|RACECHECK) SUMMARY' "$out/$name.log" | tail -n 1)
  passed=$(grep -c '^\[       OK' "$out/$name.log")
  echo "$name: exit status $code, $passed tests passed, ${said:-no summary}, $((SECONDS - from)) s" >"$out/$name.receipt"
  # A tool that could not start, or had nothing to watch, must not look like one that found nothing.
  [[ $code == 0 && -n $said && $passed -gt 0 ]]
}

if ((sanitize)); then
  compute-sanitizer --version | tail -n 1 | tee -a "$out/receipt.txt"
  names=() jobs=()
  start_tool() {
    sanitize "$@" &
    names+=("$1") jobs+=($!)
  }
  start_tool memcheck-operations "$operations" memcheck --leak-check no
  start_tool memcheck-model "$all_steps" memcheck --leak-check no
  start_tool racecheck-operations "$operations" racecheck --racecheck-report all
  start_tool racecheck-model "$some_steps" racecheck --racecheck-report all
  start_tool synccheck-operations "$operations" synccheck
  start_tool synccheck-model "$some_steps" synccheck
  # Tests copy whole buffers to the host, rows that nothing should have written included: only what kernels read counts.
  start_tool initcheck-operations "$operations" initcheck --check-api-memory-access no
  start_tool initcheck-model "$some_steps" initcheck
  for i in "${!jobs[@]}"; do
    wait "${jobs[$i]}" || status=1
    tee -a "$out/receipt.txt" <"$out/${names[$i]}.receipt"
    rm "$out/${names[$i]}.receipt"
  done
fi
du -sh "$cache" | sed 's/^/kernel cache: /' | tee -a "$out/receipt.txt"
for log in "$cache"/*.log; do  # of sources that do not compile
  [[ -e $log ]] && cp "$log" "$out/compile_error.log" && echo "a source does not compile: compile_error.log"
done
echo "gpu-test: $([[ $status == 0 ]] && echo passed || echo FAILED)" | tee -a "$out/receipt.txt"
if ((bench)); then
  gzip -dc build/gpu-test/gpu_bench.gz >"$scratch/gpu_bench" && chmod +x "$scratch/gpu_bench" || exit 1
  what=(--source "$PWD" --commit "$(head -n 1 build/gpu-test/commit)"
    --clocks "$(nvidia-smi --query-gpu=clocks.sm,clocks.mem,clocks.max.sm,power.limit --format=csv,noheader)")
  # The first start compiles every kernel, the second finds them.
  for start in empty_cache full_cache; do
    echo "first start of the bundled model, $start:"
    "$scratch/gpu_bench" --start --cache-dir "$scratch/cache" "${what[@]}" --out "$out/start_$start.json" || status=1
  done
  "$scratch/gpu_bench" --cache-dir "$cache" "${what[@]}" --out "$out/gpu_bench.json" 2>&1 | tee "$out/gpu_bench.txt"
  ((PIPESTATUS[0] == 0)) || { status=1; echo "gpu_bench FAILED"; }
fi
exit $status
