#include <functional>
#include <memory>

#include <ffrecord/verify.h>

#include "capi/handles.h"

namespace ffrecord::capi {
namespace {

std::function<bool(std::uint64_t, std::uint64_t)> ProgressOf(ffr_progress progress, void* context) {
  if (progress == nullptr) return {};
  return
      [=](std::uint64_t done, std::uint64_t total) { return progress(context, done, total) == 0; };
}

Result<void> Verify(const char* path, const ffr_verify_options* given, ffr_report** report) {
  if (path == nullptr || report == nullptr)
    return InvalidArgument("check record file: the path or the place for the report is NULL");
  const ffr_verify_options options = FFR_TRY(TakeOptions(given, "ffr_verify_options"));
  VerifyReport found = FFR_TRY(VerifyFile(path, ProgressOf(options.progress, options.context)));
  *report = new ffr_report{
      found.whole(), found.record_count, found.bad_record_count, std::move(found.problems), {}};
  return {};
}

Result<void> Repair(const char* source, const char* destination, const ffr_repair_options* given,
                    ffr_report** report) {
  if (source == nullptr || destination == nullptr || report == nullptr)
    return InvalidArgument("repair record file: a path or the place for the report is NULL");
  const ffr_repair_options taken = FFR_TRY(TakeOptions(given, "ffr_repair_options"));
  // Made before there is a new file, of which it must tell.
  auto made = std::make_unique<ffr_report>();
  RepairReport done = FFR_TRY(RepairFile(
      source, destination,
      {.replace = taken.replace != 0, .progress = ProgressOf(taken.progress, taken.context)}));
  made->is_whole = done.lost_nothing();
  made->record_count = done.kept_count;
  made->lost_count = done.lost_count;
  for (const std::string& part : done.kept_parts) made->lines.push_back("kept: " + part);
  for (const std::string& part : done.rebuilt_parts) made->lines.push_back("rebuilt: " + part);
  for (const std::string& loss : done.other_losses) made->lines.push_back("lost: " + loss);
  if (done.lost_count > 0)
    made->lines.push_back("lost: " + std::string(done.record_count_is_known ? "" : "at least ") +
                          std::to_string(done.lost_count) + " records");
  if (!done.record_count_is_known)
    made->lines.push_back(
        "the file does not say any more how many records it had: more may be lost");
  made->lost = std::move(done.lost);
  *report = made.release();
  return {};
}

Result<void> LostRange(const ffr_report* report, std::size_t range, std::uint64_t* begin,
                       std::uint64_t* end) {
  if (report == nullptr || begin == nullptr || end == nullptr)
    return InvalidArgument("find lost records: an argument is NULL");
  if (range >= report->lost.size())
    return Error{ErrorCode::kOutOfRange, "range " + std::to_string(range) +
                                             " is out of range: there are " +
                                             std::to_string(report->lost.size())};
  *begin = report->lost[range].begin;
  *end = report->lost[range].end;
  return {};
}

}  // namespace
}  // namespace ffrecord::capi

using ffrecord::capi::Guarded;

void ffr_report_free(ffr_report* report) { delete report; }

int ffr_report_is_whole(const ffr_report* report) { return report->is_whole ? 1 : 0; }

uint64_t ffr_report_record_count(const ffr_report* report) { return report->record_count; }

uint64_t ffr_report_lost_count(const ffr_report* report) { return report->lost_count; }

size_t ffr_report_line_count(const ffr_report* report) { return report->lines.size(); }

const char* ffr_report_line(const ffr_report* report, size_t line) {
  return line < report->lines.size() ? report->lines[line].c_str() : nullptr;
}

size_t ffr_report_lost_range_count(const ffr_report* report) { return report->lost.size(); }

ffr_code ffr_report_lost_range(const ffr_report* report, size_t range, uint64_t* begin,
                               uint64_t* end, ffr_error** error) {
  return Guarded(error, [&] { return ffrecord::capi::LostRange(report, range, begin, end); });
}

ffr_code ffr_verify(const char* path, const ffr_verify_options* options, ffr_report** report,
                    ffr_error** error) {
  return Guarded(error, [&] { return ffrecord::capi::Verify(path, options, report); });
}

ffr_code ffr_repair(const char* source, const char* destination, const ffr_repair_options* options,
                    ffr_report** report, ffr_error** error) {
  return Guarded(error,
                 [&] { return ffrecord::capi::Repair(source, destination, options, report); });
}
