#!/usr/bin/env bash
# What the documents say of a GPU, from one wheel in one go: text for results/<gpu>/<what>-<date>/.
#
#   tools/gpu_evidence.sh WHEELS OUT STEP...
#
# WHEELS  a folder with fuseline's wheel and what this Python lacks (expecttest)
# OUT     where the text goes; the runs themselves stay in $RUNS (/tmp/fuseline-runs) and are resumed there.
#         Two GPUs can work side by side: CUDA_VISIBLE_DEVICES and an OUT for each, after one `wheel`
# STEP    wheel   installs it (first, once a machine) and runs the doctor
#         tests   make gpu-test with the wheel's binary
#         host    host time of a small call beside torch's own
#         week12  (8, 4096, 4096) bfloat16
#         seed    the seed's 39 shapes x 4 dtypes x 2 directions (a quarter of an hour on an H200)
#         nine    all metrics of (4, 2048, 4096) bfloat16 (4 minutes)
#         known   ncu's counts beside kernels whose bytes, FLOPs and instructions are known (1 minute)
#         ncu     90 cells from 1.5 us to 4 ms, and 64 of them beside Nsight Compute (8 minutes; resumes)
#         again   40 cells 20 times, and how often the comparison errs on them (10 minutes)
#         fusion  the fusion suite of $OPS (all) with the arguments $FUSION (fp32, forward): a table and a heat map each
#                 (2 minutes an operator; resumes)
#         second  tests, week12 and checks on cuda:1 (a machine of two GPUs)
set -euo pipefail
cd "$(dirname "$0")/.."
wheels=$1 out=$2 runs=${RUNS:-/tmp/fuseline-runs}
shift 2
mkdir -p "$out" "$runs"
missed=0

install() {
  python3 -m pip install -q --no-deps --no-index --no-compile --force-reinstall "$wheels"/*.whl
  mkdir -p build/.make && touch build/.make/{lab,dev} # make takes the wheel for its own build
  sha256sum "$wheels"/fuseline-*.whl | sed 's, .*/,  ,'
  stat -c '%s bytes' "$wheels"/fuseline-*.whl
  python3 -m fuselab doctor
}

measure() { # NAME OPERATOR ARGUMENTS...: runs, then reports
  local run=$runs/$1
  python3 -m fuselab run --out "$run" "${@:2}" 2>&1 | tee "$out/$1.log" | tail -n 12 || missed=1
  python3 -m fuselab report "$run" --html "$run/report.html" --markdown "$out/$1.md"
  python3 -m fuselab export "$run" --format csv >"$out/$1.csv"
}

for step in "$@"; do
  case $step in
  wheel) install | tee "$out/wheel.txt" ;;
  tests) make gpu-test VENV=0 2>&1 | tee "$out/gpu-test.txt" | tail -n 15 ;;
  host) python3 tools/host_calls.py --device cuda | tee "$out/host.md" ;;
  week12) measure week12 rms_norm --suite week12 ;;
  seed)
    measure seed-rmsnorm rms_norm --suite seed-rmsnorm
    python3 -m fuselab report "$runs/seed-rmsnorm" --html "$runs/seed-rmsnorm/report.html" \
      --markdown "$out/seed-rmsnorm.md"
    python3 -m fuselab plot "$runs/seed-rmsnorm" "$out/bandwidth.svg" --dtype bf16
    ;;
  nine) measure nine rms_norm --case 4x2048x4096 --dtype bf16 --metrics all ;;
  known) python3 tools/known_counts.py | tee "$out/known_counts.txt" || missed=1 ;;
  ncu)
    measure ncu rms_norm --case 4x128x128 --case 4x512x4096 --case 4x2048x16384 \
      --dtype fp32 --dtype fp16 --dtype bf16 \
      --impl eager --impl native --impl triton --impl cuda --impl compile
    python3 tools/against_ncu.py "$runs/ncu" | tee "$out/against-ncu.txt" || missed=1
    ;;
  again)
    python3 tools/same_again.py measure "$runs/again"
    python3 tools/same_again.py judge "$runs/again" | tee "$out/again.txt" || missed=1
    ;;
  fusion)
    for op in ${OPS:-softmax log_softmax double_softmax softmax_backward layer_norm norm_chain pointwise_chain \
      horizontal_reduction_pointwise horizontal_reduction_reduction bias_gelu bias_dropout_add}; do
      read -ra arguments <<<"${FUSION:---dtype fp32 --direction fwd}"
      python3 -m fuselab run "$op" --suite fusion --precision quick --out "$runs/fusion" "${arguments[@]}" 2>&1 |
        tee "$out/fusion-$op.log" | tail -n 12 || missed=1
    done
    python3 -m fuselab report "$runs/fusion" --html "$runs/fusion/report.html" --markdown "$out/fusion.md" --grid "$out"
    python3 -m fuselab export "$runs/fusion" --format csv >"$out/fusion.csv"
    ;;
  second)
    python3 -m pytest -m gpu -k second tests/ops 2>&1 | tee "$out/second-tests.txt" | tail -n 3
    measure second-week12 rms_norm --suite week12 --device cuda:1
    python3 -m fuselab check rms_norm --device cuda:1 --level quick 2>&1 | tee "$out/second-check.txt"
    ;;
  *) echo "gpu_evidence: no step '$step'; there are: wheel tests host week12 seed nine known ncu again fusion second" >&2; exit 2 ;;
  esac
done
exit "$missed" # a bar missed or a cell that failed does not keep the next step from its own
