#!/bin/sh
# Compiles the test kernels; the results are committed.
cd "$(dirname "$0")" || exit 1
for f in *.comp; do
	glslc -O --target-env=vulkan1.1 "$f" -o "${f%.comp}.spv" && spirv-val --target-env vulkan1.1 "${f%.comp}.spv" || exit 1
done
