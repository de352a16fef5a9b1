# What ops/gpu/check and ops/gpu/bench share; sourced by both, with OUT in $1.

aqueduct=${AQUEDUCT:-target/release/aqueduct}
out=${1:-$(mktemp -d)}
# Each script ends by then, whatever hangs: both fit a loan of ten minutes.
limit_s=${LIMIT_S:-270}
# A process that says nothing new for so long is ended, and the next goes on behind its last row.
process_s=120
# Processes that may be lost: what breaks one context costs a second each time.
losses_max=40

pythons=(python3 /opt/torch/.venv/bin/python)

# torch: a python that has it; nothing where none does.
torch() {
  local python
  for python in "${pythons[@]}"; do
    "$python" -c 'import importlib.util, sys; sys.exit(not importlib.util.find_spec("torch"))' \
      2>/dev/null && echo "$python" && return
  done
}

# cuBLASLt, NCCL and NVRTC lie where the loader does not look: in the packages that PyTorch brings
# them in, and in the toolkit's folder.
library_folders() {
  local python
  for python in "${pythons[@]}"; do
    "$python" -c 'import glob, sys
for path in sys.path: print(*sorted(glob.glob(glob.escape(path or ".") + "/nvidia/*/lib")), sep="\n")' \
      2>/dev/null
  done
  echo /usr/local/cuda/lib64
}
export LD_LIBRARY_PATH
LD_LIBRARY_PATH=$(library_folders | grep . | paste -sd:)${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

[[ -x $aqueduct ]] || { echo "error: no binary at $aqueduct; set AQUEDUCT" >&2; exit 2; }
mkdir -p "$out"
found=$(timeout -k 5 60 "$aqueduct" gpu devices 2>"$out/devices.err") || {
  code=$?
  why=$(tail -n 1 "$out/devices.err")
  ((code != 124 && code != 137)) || why="gpu devices did not end within 60 seconds"
  echo "error: ${why#error: }" >&2
  exit "$code"
}
echo "$found" | tee "$out/devices.txt"
if command -v nvidia-smi >/dev/null; then
  timeout 20 nvidia-smi -q -d CLOCK,POWER,MEMORY,PERFORMANCE >"$out/nvidia-smi.txt" 2>&1
fi

within() { # within SECONDS COMMAND...: no longer than that, nor than the script has left
  local left=$((limit_s - SECONDS)) most=$1
  shift
  ((left > 0)) || { echo "error: no time was left" >&2; return 124; }
  timeout -k 5 $((left < most ? left : most)) "$@"
}

# rows NAME COMMAND...: OUT/NAME.jsonl has a line for each row of the command and, where all were
# tried, one at the end. A row that takes its process with it is noted; the others go on.
rows() {
  local file=$out/$1.jsonl errors=$out/$1.err before=-1 now=0 lost=0 code=0 why
  shift
  : >"$file" && : >"$errors"
  until tail -n 1 "$file" | grep -q '"commit":'; do
    now=$(wc -l <"$file")
    if ((now == before)); then
      why=$(tail -n 1 "$errors" | tr -d '"\\')
      why="exit $code${why:+: $why}"
      echo "{\"kernel\":\"row $now\",\"check\":\"row $now\",\"passed\":false,\"said\":\"$why\",\"failed\":\"$why\"}" >>"$file"
      now=$((now + 1))
    fi
    ((lost <= losses_max && SECONDS < limit_s)) || return 1
    before=$now
    within $process_s "$@" --json --from "$now" >>"$file" 2>>"$errors"
    code=$?
    ((code == 0)) || lost=$((lost + 1))
  done
}

# get KEY: in awk, the value of a key of a flat JSON line.
awk_get='function get(key) {
  if (!match($0, "\"" key "\":(\"[^\"]*\"|[^,}]*)")) return ""
  value = substr($0, RSTART + length(key) + 3, RLENGTH - length(key) - 3)
  gsub(/^"|"$/, "", value)
  return value
}'

stamp() { # stamp NAME: date, chip and commit of OUT/NAME.jsonl
  local end
  end=$(grep '"commit":' "$out/$1.jsonl" | tail -n 1)
  echo "$(date -u +%F), $(head -n 1 "$out/devices.txt" | sed 's/^cuda:0  //')," \
    "commit $(awk "$awk_get"'{ print get("commit") }' <<<"${end:-\"commit\":\"unknown, as not all rows were tried\"}")"
}
