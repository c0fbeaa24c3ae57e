#pragma once

namespace tiny {

// Whether small products are faster by oneDNN's blocks than by MKL on this processor.
bool multiplies_small_by_blocks();

}  // namespace tiny
