#pragma once

namespace tiny {

// Whether oneDNN is there and faster than MKL on this processor.
bool onednn_multiplies_faster();

}  // namespace tiny
