// SPDX-License-Identifier: BSD-3-Clause
// An operator's recipes by class of calls. Threads that first use a class wait for a single build.
// A refused class stays refused. Full tables evict entries that were not used since the last
// search.
#pragma once

#include <c10/core/Device.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/wait.h"
#include "kernels/builds.h"
#include "ops/call/recent_failure.h"
#include "ops/planned/generated_provider.h"

namespace outboard {

// The state that the table needs of every recipe.
struct RecipeState {
  std::string kept;  // the plan's text, if it was read from disk
  mutable std::atomic<bool> is_dropped{false};  // it was read from disk and is unusable: another is built
  mutable std::atomic<bool> is_refused{false};  // the driver refused a program after a launch was queued
  mutable std::atomic<bool> was_used{true};  // since the last search for a recipe to evict
};

// Build the programs of a recipe, or only start building them if its launches may be queued
// meanwhile. Raise the failure of a build that was waited for.
template <typename Recipe>
void build_programs(const std::shared_ptr<const Recipe>& recipe, c10::DeviceIndex device) {
  const auto& all = recipe->kernels;
  const bool may_queue =
      kernels::may_build_in_background(current_stream(device)) && !recipe->is_refused.load() &&
      std::ranges::none_of(all, [device](const auto& kernel) { return kernel->was_refused(device); });
  bool are_begun = true;
  if (may_queue || all.size() > 1) {
    const auto on_refusal = [known = std::weak_ptr<const Recipe>(recipe)] {
      if (const std::shared_ptr<const Recipe> refused = known.lock()) {
        refused->is_refused.store(true);
      }
    };
    for (const auto& kernel : all) {
      are_begun = kernel->start(device, on_refusal) && are_begun;
    }
  }
  if (!may_queue || !are_begun) {  // another provider can serve only a caller that waits
    for (const auto& kernel : all) {
      try {
        kernel->build(device);
      } catch (const kernels::ProgramHangs&) {
        throw;
      } catch (const kernels::ProgramRefused&) {
        kernel->note_refused(device);
        throw;
      }
    }
    kernels::note_built();
  }
}

// Return true if a call failed because the pool's build of a program was refused after the call
// had begun. If the call is tried again, it waits for its programs, and is refused in time for the
// next provider.
inline bool was_refused_meanwhile(const RecipeState& recipe, const std::exception& error) {
  return recipe.is_refused.load(std::memory_order_relaxed) &&
         dynamic_cast<const kernels::ProgramRefused*>(&error) != nullptr;
}

// A class of calls that one set of recipes may serve.
template <typename Recipe>
struct RecipeClass {
  std::vector<std::shared_ptr<const Recipe>> recipes;
  std::string refusal;
  bool is_building = false;
  bool is_loaded = false;  // the plans on disk are among the recipes
  std::atomic<bool> was_used{true};  // since the last search for a class to evict
  RecentFailure failure;  // failure to make a plan
};

// The numbers of an operator that the builder reports once for all callers.
class OperatorNumbers {
 public:
  uint64_t of(const Operator& op, uint64_t (*PlanBuilder::*ask)(const Operator& op)) {
    uint64_t known = known_.load(std::memory_order_relaxed);
    if (C10_UNLIKELY(known == kUnknown)) {
      const PlanBuilder* builder = plan_builder();
      known = builder == nullptr ? 0 : (builder->*ask)(op);
      known_.store(known, std::memory_order_relaxed);
    }
    return known;
  }

 private:
  static constexpr uint64_t kUnknown = ~uint64_t{0};
  std::atomic<uint64_t> known_{kUnknown};
};

// Thread-safe. Python and the driver are called without its lock. Evicted classes are destroyed
// without it too, because a failure may be a Python object.
template <typename Recipe>
class RecipeClasses {
 public:
  using Class = RecipeClass<Recipe>;
  using Words = std::vector<uint64_t>;

  // Return the result for a call of the class with these words: `refused(reason)` if the class is
  // refused; else the first non-null `use(recipe, group)` over its recipes; else `build(group)`,
  // which only one thread calls at a time. If this is null, search again.
  template <typename Refused, typename Use, typename Build>
  auto find_or_build(Words words, c10::DeviceIndex device, const std::string& op, Refused&& refused, Use&& use,
                     Build&& build) -> decltype(refused(std::string())) {
    std::shared_ptr<Class> evicted;
    std::unique_lock lock(mutex_);
    const std::shared_ptr<Class> group = class_of(std::move(words), &evicted);
    size_t tried = 0;
    for (;; lock.lock()) {
      if (!group->refusal.empty()) {
        return refused(group->refusal);
      }
      if (tried < group->recipes.size()) {
        const std::shared_ptr<const Recipe> recipe = group->recipes[tried++];
        lock.unlock();
        if (recipe->is_dropped.load(std::memory_order_relaxed)) {
          continue;
        }
        if (auto result = use(recipe, group)) {
          recipe->was_used.store(true, std::memory_order_relaxed);
          return result;
        }
      } else if (group->is_building) {
        lock.unlock();
        // The building thread needs the interpreter lock.
        const TrackedWait waiting("the builder of plans", device, nullptr, op.c_str());
        std::unique_lock class_lock(mutex_);
        wait_for_thread(waiting, built_, class_lock, [&] { return !group->is_building; });
      } else {
        group->is_building = true;
        lock.unlock();
        const Building until_end(*this, *group);
        if (auto result = build(group)) {
          return result;
        }
      }
    }
  }

  // Add a recipe to a class.
  void keep(std::shared_ptr<const Recipe> recipe, Class& group) {
    count_plan();
    std::vector<std::shared_ptr<const Recipe>> evicted;
    const std::lock_guard lock(mutex_);
    while (group.recipes.size() >= kMaxRecipes) {
      auto unused = std::ranges::find_if(group.recipes, [](const std::shared_ptr<const Recipe>& recipe) {
        return !recipe->was_used.exchange(false, std::memory_order_relaxed);
      });
      unused = unused == group.recipes.end() ? group.recipes.begin() : unused;
      evicted.push_back(std::move(*unused));
      group.recipes.erase(unused);
    }
    group.recipes.push_back(std::move(recipe));
  }

  // Refuse all calls of a class. Refused classes do not displace others.
  void refuse(const std::string& reason, Class& group) {
    std::shared_ptr<Class> evicted;
    const std::lock_guard lock(mutex_);
    group.refusal = reason;
    group.was_used.store(true, std::memory_order_relaxed);
    if (classes_.size() > kMaxRefused && count(/*are_refused=*/true) > kMaxRefused) {
      evicted = evict(/*is_refused=*/true);
    }
  }

 private:
  static constexpr size_t kMaxClasses = 1024;
  static constexpr size_t kMaxRefused = 256;
  static constexpr size_t kMaxRecipes = 256;  // recipes per class; a pack may have some dozens

  // A scope in which a thread builds for a class.
  class Building {
   public:
    Building(RecipeClasses& known, Class& group) : known_(known), group_(group) {}
    ~Building() {
      const std::lock_guard lock(known_.mutex_);
      group_.is_building = false;
      known_.built_.notify_all();
    }
    Building(const Building&) = delete;
    Building& operator=(const Building&) = delete;

   private:
    RecipeClasses& known_;
    Class& group_;
  };

  // Call the following functions with the lock held.
  std::shared_ptr<Class> class_of(Words words, std::shared_ptr<Class>* out_evicted) {
    if (const auto known = classes_.find(words); known != classes_.end()) {
      known->second->was_used.store(true, std::memory_order_relaxed);
      return known->second;
    }
    if (classes_.size() >= kMaxClasses && count(/*are_refused=*/false) >= kMaxClasses) {
      *out_evicted = evict(/*is_refused=*/false);
    }
    return classes_.try_emplace(std::move(words), std::make_shared<Class>()).first->second;
  }

  size_t count(bool are_refused) const {
    return static_cast<size_t>(std::ranges::count_if(
        classes_, [are_refused](const auto& entry) { return entry.second->refusal.empty() != are_refused; }));
  }

  std::shared_ptr<Class> evict(bool is_refused) {
    // Two rounds: the first may only clear marks.
    for (size_t left = 2 * classes_.size(); left > 0; --left) {
      auto next = classes_.upper_bound(hand_);
      next = next == classes_.end() ? classes_.begin() : next;
      hand_ = next->first;
      Class& group = *next->second;
      if (!group.is_building && group.refusal.empty() != is_refused &&
          !group.was_used.exchange(false, std::memory_order_relaxed)) {
        std::shared_ptr<Class> evicted = std::move(next->second);
        classes_.erase(next);
        return evicted;
      }
    }
    return nullptr;
  }

  std::mutex mutex_;  // guards the members below
  std::condition_variable built_;
  std::map<Words, std::shared_ptr<Class>> classes_;
  Words hand_;  // the next search begins after this class
};

}  // namespace outboard
