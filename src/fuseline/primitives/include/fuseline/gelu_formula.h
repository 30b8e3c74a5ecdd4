// Which GELU: by the hyperbolic tangent, or by the error function; and ReLU, whose gradient alone
// has a kernel: its forward is part of what it follows.
#pragma once

namespace fuseline::gelu {

enum class Formula { tanh, erf, relu };
constexpr int kFormulas = 2;

}  // namespace fuseline::gelu
