#!/usr/bin/env bash
# Stands for `aqueduct` on a machine with a device. Row 1 takes its process with it and says nothing,
# row 2 is told and takes the device with it.
from=${*: -1}
end() { echo "{\"device\":\"Pretended\",\"failed\":1,\"commit\":\"abc123\"}"; exit 1; }
row() { [[ $1 -lt $from ]] || echo "$2"; }
case "$1 $2" in
"gpu devices") printf 'cuda:0  Pretended H100\nlibraries from %s\n' "$LD_LIBRARY_PATH" ;;
"gpu check")
  row 0 '{"check":"attend","passed":true,"said":"","ms":1.5}'
  [[ $from -gt 1 ]] || { echo "error: illegal \"address\"" >&2; exit 139; }
  row 2 '{"check":"weigh","passed":false,"said":"mass, 3.0e-1 off","ms":1.5}'
  [[ $from -gt 2 ]] || exit 1
  row 3 '{"check":"select","passed":true,"said":"","ms":1.5}'
  end ;;
"gpu bench")
  row 0 '{"kernel":"attention","bound":"206 GFLOP","us":400.26,"us_spread":2.0,"floor_us":208.0,"over_floor":1.923,"target_us":490.0,"met":true,"tflops":515.0,"gbps":222.4,"reps":9}'
  [[ $from -gt 1 ]] || exit 139
  row 2 '{"kernel":"merge","failed":"device: lost"}'
  [[ $from -gt 2 ]] || exit 1
  row 3 '{"kernel":"copy","bound":"","us":10.0,"us_spread":0.1,"floor_us":9.0,"over_floor":1.111,"target_us":null,"met":null,"tflops":0.0,"gbps":2999.6,"reps":9}'
  end ;;
"gpu nccl") echo "skipped: no libnccl" ;;
"generate --model")
  echo '{"event":"token","choice":0,"token_idx":0,"token":17,"text":"a","logprob":-0.25}'
  case "$*" in
  *"--device cpu --policy window"*) row=('512' '-0.7012') ;;
  *"--device cuda --policy window"*) row=('93' '-6.99e-1') ;;
  *"--device cpu --policy dense"*) row=('512' '-0.25') ;;
  *"--device cuda --policy dense"*) row=('93' '-0.75') ;;
  *) exit ;;
  esac
  echo "{\"event\":\"token\",\"choice\":0,\"token_idx\":1,\"token\":${row[0]},\"text\":\"b\",\"logprob\":${row[1]}}" ;;
esac
