#!/usr/bin/env bash
# Builds forward_bits for this machine and for aarch64 (g++-aarch64-linux-gnu), runs the latter under qemu-user-static, and
# compares: the forward pass must give the same bits. Takes about two minutes; not a part of `./dev test`.
#   apt-get install g++-aarch64-linux-gnu qemu-user-static && tests/portability/aarch64.sh
set -euo pipefail
cd "$(dirname "$0")/../.."
out=build/portability
mkdir -p "$out/include"
ln -sfn /usr/include/fmt "$out/include/fmt"            # headers that do not depend on the architecture
ln -sfn /usr/include/nlohmann "$out/include/nlohmann"
sources=$(ls src/{base,device,model,cache,forward}/*.cc src/ops/*/*.cc | grep -v -e _test.cc -e kernels_avx)
flags=(-std=c++20 -O2 -ffp-contract=off -fno-math-errno -DFMT_HEADER_ONLY '-DTANDEM_VERSION="portability"' -Isrc -I"$out/include")

build() {  # compiler, name, extra sources
  mkdir -p "$out/$2"
  for source in $sources tests/portability/forward_bits.cc; do
    echo "$1 ${flags[*]@Q} -c $source -o $out/$2/$(echo "$source" | tr / _).o"
  done | xargs -P "$(nproc)" -I{} sh -c '{}'
  "$1" -static "$out/$2"/*.o -o "$out/$2/forward_bits" -lpthread
}

build aarch64-linux-gnu-g++ aarch64
cmake --build build/release --target forward_bits
qemu-aarch64-static "$out/aarch64/forward_bits" > "$out/aarch64.txt"
build/release/tests/portability/forward_bits > "$out/here.txt"
diff "$out/here.txt" "$out/aarch64.txt"
cat "$out/here.txt"
echo "the same bits on $(uname -m) and aarch64"
