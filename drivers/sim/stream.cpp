// SPDX-License-Identifier: BSD-3-Clause
#include "stream.h"

#include <algorithm>
#include <cstdio>

#include "error.h"

namespace sim {

Stream::~Stream() {
  while (read_segment_ != nullptr) {
    Segment* next = read_segment_->next;
    delete read_segment_;
    read_segment_ = next;
  }
  delete spare_.load();
}

void Stream::push(const Task& task) {
  const uint64_t position = tail.load(std::memory_order_relaxed);
  const uint64_t offset = position % kSegmentTasks;
  if (offset == 0) {
    Segment* segment = spare_.exchange(nullptr, std::memory_order_acquire);
    if (segment == nullptr) segment = new Segment;
    segment->next = nullptr;
    if (write_segment_ != nullptr) {
      write_segment_->next = segment;
    } else {
      read_segment_ = segment;  // no consumer reads it before `tail` shows a task
    }
    write_segment_ = segment;
  }
  write_segment_->tasks[offset] = task;
  tail.store(position + 1, std::memory_order_release);
}

Task* Stream::head() {
  const uint64_t position = completed.load(std::memory_order_relaxed);
  if (tail.load(std::memory_order_acquire) == position) return nullptr;
  if (position - read_base_ == kSegmentTasks) {
    Segment* finished = read_segment_;
    read_segment_ = finished->next;
    read_base_ = position;
    delete spare_.exchange(finished, std::memory_order_release);
  }
  return &read_segment_->tasks[position - read_base_];
}

Stream* Stream::complete_head() {
  const uint64_t position = completed.load(std::memory_order_relaxed) + 1;
  completed.store(position);
  if (position < wake_at.load()) return nullptr;

  std::lock_guard guard(wait_mutex_);
  Stream* released = nullptr;
  uint64_t lowest = kNoPosition;
  for (Stream** link = &blocked_; *link != nullptr;) {
    Stream* stream = *link;
    if (stream->blocked_until <= position) {
      *link = stream->next;
      stream->next = released;
      released = stream;
    } else {
      lowest = std::min(lowest, stream->blocked_until);
      link = &stream->next;
    }
  }
  wake_at.store(lowest);  // sleepers for later positions set theirs again
  wait_condition_.notify_all();
  return released;
}

uint64_t Stream::close() {
  const uint64_t position = completed.load(std::memory_order_relaxed) + 1;
  tail.store(position, std::memory_order_release);
  return position;
}

void Stream::sleep_until(uint64_t position) {
  std::unique_lock guard(wait_mutex_);
  for (;;) {
    wake_at.store(std::min(wake_at.load(), position));
    if (completed.load() >= position) return;
    wait_condition_.wait(guard);
  }
}

bool Stream::block(Stream* waiter, uint64_t position) {
  std::lock_guard guard(wait_mutex_);
  wake_at.store(std::min(wake_at.load(), position));
  if (completed.load() >= position) return false;
  waiter->blocked_until = position;
  waiter->next = blocked_;
  blocked_ = waiter;
  return true;
}

void Failure::add(ob_status status, const char* text) {
  std::lock_guard guard(mutex_);
  if (status_.load(std::memory_order_relaxed) != OB_OK) return;
  std::snprintf(text_, sizeof text_, "%s", text);
  status_.store(status, std::memory_order_release);
}

ob_status Failure::take() {
  if (status_.load(std::memory_order_acquire) == OB_OK) return OB_OK;
  std::lock_guard guard(mutex_);
  const ob_status status = status_.exchange(OB_OK, std::memory_order_relaxed);
  return status == OB_OK ? OB_OK : fail(status, "%s", text_);
}

}  // namespace sim
