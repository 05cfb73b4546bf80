#include "server/service/metrics_page.h"

#include <fmt/format.h>

#include <cstddef>
#include <iterator>
#include <variant>

namespace ffrecord::server {
namespace {

template <class T>
void AppendRow(std::string& text, std::string_view name, std::string_view labels, T value) {
  if (labels.empty())
    fmt::format_to(std::back_inserter(text), "{} {}\n", name, value);
  else
    fmt::format_to(std::back_inserter(text), "{}{{{}}} {}\n", name, labels, value);
}

}  // namespace

void MetricsPage::Begin(const char* name, const char* help, const char* type) {
  if (name_ == name) return;
  name_ = name;
  fmt::format_to(std::back_inserter(text_), "# HELP {0} {1}\n# TYPE {0} {2}\n", name, help, type);
}

void MetricsPage::Family(const char* name, const char* help) {
  Begin(name, help, std::string_view(name).ends_with("_total") ? "counter" : "gauge");
}

void MetricsPage::AppendNumber(std::string_view labels, std::uint64_t value) {
  AppendRow(text_, name_, labels, value);
}

void MetricsPage::AppendReal(std::string_view labels, double value) {
  AppendRow(text_, name_, labels, value);
}

void MetricsPage::AppendTimes(std::string_view labels, const Histogram::Sum& sum) {
  std::uint64_t count = 0;
  const auto bucket = [&](const auto& bound) {
    fmt::format_to(std::back_inserter(text_), "{}_bucket{{{},le=\"{}\"}} {}\n", name_, labels,
                   bound, count);
  };
  for (std::size_t i = 0; i + 1 < sum.buckets.size(); ++i) {
    count += sum.buckets[i];
    bucket(static_cast<double>(Histogram::BoundUs(i)) / 1e6);
  }
  count += sum.buckets.back();
  bucket("+Inf");
  const std::string family(name_);
  AppendRow(text_, family + "_sum", labels, static_cast<double>(sum.sum_us) / 1e6);
  AppendRow(text_, family + "_count", labels, count);
}

void MetricsPage::Sums(std::span<const MetricSet* const> sets) {
  for (std::size_t i = 0; i < sets.front()->metrics().size(); ++i) {
    const MetricSet::Metric& metric = sets.front()->metrics()[i];
    if (std::holds_alternative<const Counter*>(metric.value)) {
      std::uint64_t sum = 0;
      for (const MetricSet* set : sets)
        sum += std::get<const Counter*>(set->metrics()[i].value)->value();
      Family(metric.name, metric.help);
      AppendNumber(metric.labels, sum);
    } else {
      Histogram::Sum sum;
      for (const MetricSet* set : sets)
        sum.Add(*std::get<const Histogram*>(set->metrics()[i].value));
      Begin(metric.name, metric.help, "histogram");
      AppendTimes(metric.labels, sum);
    }
  }
}

}  // namespace ffrecord::server
