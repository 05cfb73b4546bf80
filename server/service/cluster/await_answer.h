#pragma once

#include <future>
#include <memory>
#include <utility>

#include <ffrecord/result.h>

namespace ffrecord::server {

// Waits for the answer of what `begin` begins. `begin` receives a `done`, which is called once, by
// any thread.
template <class T, class Begin>
Result<T> AwaitAnswer(const Begin& begin) {
  auto promise = std::make_shared<std::promise<Result<T>>>();
  auto result = promise->get_future();
  begin([promise](Result<T> made) { promise->set_value(std::move(made)); });
  return result.get();
}

}  // namespace ffrecord::server
