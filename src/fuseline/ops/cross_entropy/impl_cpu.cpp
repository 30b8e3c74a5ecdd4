// The CPU kernels of the cross_entropy operators.
#include "fuseline/core/cpp/isa.h"
#include "fuseline/cpu/rows_cpu.h"
#include "impl_args.h"
#include "impl_cpu_dispatch.h"

namespace fuseline::cross_entropy {

FUSELINE_CPU_KERNELS(Kernels)

namespace {

constexpr int64_t kExponential = 4;  // takes a thread as long as so many elements do

// Refuses a target that is no class.
void check_classes(const Tensor& target, int64_t classes, int64_t ignore_index) {
  const auto* const of = static_cast<const int64_t*>(target.const_data_ptr());
  for (int64_t row = 0; row < target.numel(); ++row) {
    STD_TORCH_CHECK((0 <= of[row] && of[row] < classes) || of[row] == ignore_index, kArgs.op,
                    ": target has ", of[row], " in row ", row, ", expected 0 to ", classes - 1,
                    " or ignore_index, ", ignore_index);
  }
}

double weight_at(const std::optional<Tensor>& weight, int64_t i) {
  if (!weight) return 1;
  if (weight->scalar_type() == ScalarType::Float) {
    return static_cast<const float*>(weight->const_data_ptr())[i];
  }
  return static_cast<const double*>(weight->const_data_ptr())[i];
}

// With what additions lose: fp64 losses have no digits to spare.
class Sum {
 public:
  void add(double term) {
    const double sum = value_ + term, moved = sum - value_;
    lost_ += (value_ - (sum - moved)) + (term - moved);
    value_ = sum;
  }
  double whole() const { return std::isfinite(value_) ? value_ + lost_ : value_; }

 private:
  double value_ = 0, lost_ = 0;
};

// The weights of the targets together, and those of all classes.
std::array<double, kTotals> totals_of(const Tensor& target, const std::optional<Tensor>& weight,
                                      int64_t classes, int64_t ignore_index) {
  const auto* const of = static_cast<const int64_t*>(target.const_data_ptr());
  Sum of_targets, of_all;
  for (int64_t row = 0; row < target.numel(); ++row) {
    if (of[row] != ignore_index) of_targets.add(weight_at(weight, of[row]));
  }
  for (int64_t i = 0; weight && i < classes; ++i) of_all.add(weight_at(weight, i));
  return {of_targets.whole(), weight ? of_all.whole() : static_cast<double>(classes)};
}

Problem problem_of(const Rows& logits, const Tensor& target, const std::optional<Tensor>& weight,
                   const Tensor& stats, const double* total, const Options& options) {
  Problem p{};
  p.logits = logits.data();
  p.target = static_cast<const int64_t*>(target.const_data_ptr());
  p.weight = weight ? weight->const_data_ptr() : nullptr;
  p.stats = stats.mutable_data_ptr();
  p.n = logits.n;
  p.stride = logits.stride;
  p.ignore_index = options.ignore_index;
  p.smoothing = options.smoothing;
  p.z_loss = options.z_loss;
  const bool wide = logits.tensor.scalar_type() == ScalarType::Double;
  p.softcap = wide ? options.softcap_in<double>() : options.softcap_in<float>();
  p.weights = total[1];
  return p;
}

template <class S>
double sum_of(const Tensor& losses) {
  Sum sum;
  const S* const of = static_cast<const S*>(losses.const_data_ptr());
  for (int64_t row = 0; row < losses.numel(); ++row) sum.add(of[row]);
  return sum.whole();
}

// Writes the loss of all rows, which `total` divides if it is their mean.
template <class S>
void reduce(const Results& to, double total, const Options& options) {
  const double sum = sum_of<S>(to.losses);
  *static_cast<S*>(to.loss.mutable_data_ptr()) =
      static_cast<S>(options.reduction == kMean ? sum / total : sum);
}

std::tuple<Tensor, Tensor, Tensor> forward(const Tensor& logits, Tensor target,
                                           std::optional<Tensor> weight, int64_t ignore_index,
                                           std::string reduction, double smoothing, double z_loss,
                                           std::optional<double> softcap) {
  const Options options(ignore_index, reduction, smoothing, z_loss, softcap);
  check(logits, target, weight);
  const Rows rows = rows_of(logits);
  check_classes(target, rows.n, ignore_index);
  const Results to(logits, options);
  const auto total = totals_of(target, weight, rows.n, ignore_index);
  std::copy(total.begin(), total.end(), static_cast<double*>(to.total.mutable_data_ptr()));
  const ForwardArgs args{problem_of(rows, target, weight, to.stats, total.data(), options),
                         to.losses.mutable_data_ptr()};
  const auto kernel = kernels().forward[static_cast<int>(element_of(logits))];
  parallel(rows.rows, kExponential * rows.n,
           [&](int64_t first, int64_t last) { kernel(args, first, last); });
  if (options.reduction != kNone) {
    const bool wide = logits.scalar_type() == ScalarType::Double;
    wide ? reduce<double>(to, total[0], options) : reduce<float>(to, total[0], options);
  }
  return {to.loss, to.stats, to.total};
}

Tensor loss(const Tensor& logits, const Tensor& target, std::optional<Tensor> weight,
            int64_t ignore_index, std::string reduction, double smoothing, double z_loss,
            std::optional<double> softcap) {
  return std::get<0>(
      forward(logits, target, weight, ignore_index, reduction, smoothing, z_loss, softcap));
}

// Writes the gradient of the rows to rows of memory, `apart` elements from each other.
void write_gradient(Tensor dloss, const Rows& rows, Tensor target, std::optional<Tensor> weight,
                    Tensor stats, Tensor total, const Options& options, void* dlogits,
                    int64_t apart) {
  check_bwd(dloss, rows.tensor, target, weight, stats, total, options);
  check_classes(target, rows.n, options.ignore_index);
  const auto* const totals = static_cast<const double*>(total.const_data_ptr());
  const GradientArgs args{problem_of(rows, target, weight, stats, totals, options),
                          dloss.const_data_ptr(),
                          dlogits,
                          options.reduction == kNone,
                          apart,
                          options.reduction == kMean ? totals[0] : 1};
  const auto kernel = kernels().gradient[static_cast<int>(element_of(rows.tensor))];
  parallel(rows.rows, kExponential * rows.n,
           [&](int64_t first, int64_t last) { kernel(args, first, last); });
}

Tensor backward(const Tensor& dloss, const Tensor& logits, const Tensor& target,
                const std::optional<Tensor>& weight, const Tensor& stats, const Tensor& total,
                int64_t ignore_index, std::string reduction, double smoothing, double z_loss,
                std::optional<double> softcap) {
  const Options options(ignore_index, reduction, smoothing, z_loss, softcap);
  kArgs.check_rows(logits);
  const Rows rows = rows_of(logits);
  Tensor dlogits = allocate_like(logits);
  write_gradient(dloss, rows, target, weight, stats, total, options, dlogits.mutable_data_ptr(),
                 rows.n);
  return dlogits;
}

void backward_in_place(const Tensor& dloss, const Tensor& logits, const Tensor& target,
                       const std::optional<Tensor>& weight, const Tensor& stats,
                       const Tensor& total, int64_t ignore_index, std::string reduction,
                       double smoothing, double z_loss, std::optional<double> softcap) {
  const Options options(ignore_index, reduction, smoothing, z_loss, softcap);
  const Rows rows = writable_rows(logits);
  write_gradient(dloss, rows, target, weight, stats, total, options, logits.mutable_data_ptr(),
                 rows.stride);
}

}  // namespace
}  // namespace fuseline::cross_entropy

// op.py repeats them for installations without this binary.
STABLE_TORCH_LIBRARY_FRAGMENT(fuseline, m) {
  m.def(
      "cross_entropy(Tensor logits, Tensor target, Tensor? weight, int ignore_index, "
      "str reduction, float label_smoothing, float z_loss, float? softcap) -> Tensor");
  m.def(
      "_cross_entropy(Tensor logits, Tensor target, Tensor? weight, int ignore_index, "
      "str reduction, float label_smoothing, float z_loss, float? softcap) -> Tensor");
  m.def(
      "_cross_entropy_fwd(Tensor logits, Tensor target, Tensor? weight, int ignore_index, "
      "str reduction, float label_smoothing, float z_loss, float? softcap) -> "
      "(Tensor, Tensor, Tensor)");
  m.def(
      "_cross_entropy_bwd(Tensor dloss, Tensor logits, Tensor target, Tensor? weight, "
      "Tensor stats, Tensor total, int ignore_index, str reduction, float label_smoothing, "
      "float z_loss, float? softcap) -> Tensor");
  m.def(  // over the logits
      "_cross_entropy_bwd_(Tensor dloss, Tensor(a!) logits, Tensor target, Tensor? weight, "
      "Tensor stats, Tensor total, int ignore_index, str reduction, float label_smoothing, "
      "float z_loss, float? softcap) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(fuseline, CPU, m) {
  m.impl("cross_entropy", TORCH_BOX(&fuseline::cross_entropy::loss));
  m.impl("_cross_entropy", TORCH_BOX(&fuseline::cross_entropy::loss));
  m.impl("_cross_entropy_fwd", TORCH_BOX(&fuseline::cross_entropy::forward));
  m.impl("_cross_entropy_bwd", TORCH_BOX(&fuseline::cross_entropy::backward));
  m.impl("_cross_entropy_bwd_", TORCH_BOX(&fuseline::cross_entropy::backward_in_place));
}
