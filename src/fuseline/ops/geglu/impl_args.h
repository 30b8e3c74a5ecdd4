// What the messages of every backend of geglu name, and the formula that a call asks for.
#pragma once

#include "fuseline/core/cpp/norm_args.h"
#include "fuseline/gelu_formula.h"

namespace fuseline::geglu {

constexpr NormArgs kArgs{"geglu", "a"};

inline gelu::Formula formula_of(const std::string& approximate) {
  STD_TORCH_CHECK(approximate == "tanh" || approximate == "none", "geglu: approximate is '",
                  approximate, "', expected 'tanh' or 'none'");
  return approximate == "tanh" ? gelu::Formula::tanh : gelu::Formula::erf;
}

}  // namespace fuseline::geglu
