// What the messages of every backend of swiglu name.
#pragma once

#include "fuseline/core/cpp/norm_args.h"

namespace fuseline::swiglu {

constexpr NormArgs kArgs{"swiglu", "a"};

}  // namespace fuseline::swiglu
