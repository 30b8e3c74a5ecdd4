// Which GELU: by the hyperbolic tangent, or by the error function.
#pragma once

namespace fuseline::bias_gelu {

enum class Formula { tanh, erf };
constexpr int kFormulas = 2;

}  // namespace fuseline::bias_gelu
