#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "server/service/metrics.h"

namespace ffrecord::server {

// A page of metrics in the text format of Prometheus, version 0.0.4. Times are in seconds, sizes in
// bytes. A family whose name ends with "_total" is a counter, others are gauges.
class MetricsPage {
 public:
  // A family with one value.
  template <class T>
  void Value(const char* name, const char* help, T value) {
    Family(name, help);
    Row("", value);
  }
  // Begins a family; the same one again goes on with it.
  void Family(const char* name, const char* help);
  // A value of the family, with labels as Label() makes them.
  template <class T>
  void Row(std::string_view labels, T value) {
    if constexpr (std::is_floating_point_v<T>)
      AppendReal(labels, value);
    else
      AppendNumber(labels, static_cast<std::uint64_t>(value));
  }
  // The metrics of sets of one kind, each summed over the sets.
  void Sums(std::span<const MetricSet* const> sets);
  void Sums(const MetricSet& set) {
    const MetricSet* const one = &set;
    Sums({&one, 1});
  }

  std::string text() && { return std::move(text_); }

 private:
  void Begin(const char* name, const char* help, const char* type);
  void AppendNumber(std::string_view labels, std::uint64_t value);
  void AppendReal(std::string_view labels, double value);
  void AppendTimes(std::string_view labels, const Histogram::Sum& sum);

  std::string_view name_;
  std::string text_;
};

}  // namespace ffrecord::server
