// The formulas of the plan: against the published arithmetic (spec/runtime.md b.1, b.4, spec/model.md 1.4) and against
// what the model itself says it allocates.
#include "engine/plan_bytes.h"

#include "base/error.h"
#include "model/cache_bytes.h"
#include "model/split.h"

namespace tandem::engine::plan_bytes_test {
namespace {

model::Shape flash() {
  return model::read_shape(std::string(TANDEM_SOURCE_DIR) + "/tests/golden/configs/glm-5.3-flash.json");
}
model::Shape nano() { return model::read_shape(std::string(TANDEM_SOURCE_DIR) + "/models/nano"); }
model::Shape without_mtp(model::Shape shape) {
  shape.num_nextn_predict_layers = 0;
  return shape;
}
double gib(int64_t bytes) { return static_cast<double>(bytes) / (1 << 30); }
double mib(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

TEST(PlanBytes, ThePublishedArithmeticWithItsRecordSizes) {
  // 528-byte latent records and index records padded to 144 bytes, 11 layers (spec/runtime.md b.1).
  const model::CacheRow published{"fp8, padded", 528, 144};
  EXPECT_EQ(model::token_bytes(11, published, 4), 6204);
  EXPECT_EQ(model::page_bytes(11, published, 4, 2048), 12'705'792);  // one 2,048-row block
  const auto pool = [&](int64_t tokens) { return gib(model::page_bytes(11, published, 4, tokens)); };
  EXPECT_NEAR(pool(1'048'576), 6.06, 0.005);
  EXPECT_NEAR(pool(2'684'928), 15.51, 0.005);
  EXPECT_NEAR(pool(2'852'864), 16.48, 0.005);
  EXPECT_NEAR(pool(2'922'496), 16.89, 0.005);
  EXPECT_NEAR(pool(596'096), 3.444, 0.0005);  // a published state size
}

TEST(PlanBytes, OurRecordsHaveNoPadding) {
  const model::Shape shape = flash();
  const auto bytes = [&](const char* dtype, int64_t layers) {
    return model::token_bytes(layers, model::cache_row(shape, model::parse_cache_type(dtype)), shape.index_kpool);
  };
  EXPECT_EQ(bytes("fp8", 11), 6171);
  EXPECT_EQ(bytes("fp8", 12), 6732);
  EXPECT_EQ(bytes("bf16", 11), 11'968);
  EXPECT_EQ(bytes("f32", 11), 2 * 11'968);
  EXPECT_EQ(bytes("nvfp4", 11), 3707);
  EXPECT_EQ(cached_layers(shape), 12);
  EXPECT_EQ(cached_layers(without_mtp(shape)), 11);
  EXPECT_EQ(bytes("fp8_row", 11), 6039);
  EXPECT_EQ(bytes("bf16_fp8_index", 11), 11'627);
  EXPECT_THROW(model::parse_cache_type("int4"), Error);
  EXPECT_THROW(model::parse_cache_type(""), Error);
}

// A pool of b.1's size comes out of make_plan with its memory put in: 15.51 GiB are 2,684,928 rows of 6,204 bytes.
TEST(PlanBytes, ThePlannerMakesTheSamePool) {
  const model::CacheRow published{"fp8, padded", 528, 144};
  const forward::Ranks tp2{0, 2, 1};
  PlanSettings settings;
  settings.ranks = tp2;
  settings.kv_cache_memory = int64_t{2'684'928 + 256} * 6204;  // and the null page
  const Plan plan = make_plan(1'048'576, text_model_bytes(without_mtp(flash()), tp2, 1, published), settings);
  EXPECT_EQ(plan.page_bytes, 256 * 6204);
  EXPECT_EQ(plan.pool_rows, 2'684'928);
  EXPECT_EQ(plan.max_model_len, 1'048'576);
  settings.ranks.decode_context_parallel_size = 2;
  settings.max_num_seqs = 8;
  EXPECT_EQ(make_plan(1'048'576, text_model_bytes(without_mtp(flash()), tp2, 1, published), settings).pool_rows,
            2 * 2'684'928);
}

TEST(PlanBytes, PageFormulasAreTheModels) {
  for (const model::Shape& shape : {nano(), flash(), without_mtp(flash())}) {
    for (const model::CacheType type : model::all_cache_types) {
      forward::Capacity capacity;
      capacity.pages = 77;
      capacity.max_stream_pages = 5;
      capacity.kept_states = 3;
      capacity.cache_type = type;
      const forward::Ranks one;
      EXPECT_EQ(text_model_bytes(shape, one, 2, model::cache_row(shape, type))(capacity),
                text_model_bytes(shape, one, 2)(capacity));
      EXPECT_EQ(text_model_bytes(shape, one, 2)(capacity), forward::TextModel::planned_bytes(shape, capacity, 2));
    }
  }
}

TEST(PlanBytes, StatePartsAddUpToWhatTheModelAllocates) {
  for (const model::Shape& shape : {nano(), flash(), without_mtp(flash())}) {
    for (const int32_t size : {1, 2}) {
      const forward::Ranks ranks{0, size, 1};
      const model::Shape mine = model::shape_of_rank(shape, 0, size);
      forward::Capacity capacity, more;
      more.slots = 2;
      const int64_t slot = text_model_bytes(shape, ranks, 1)(more) - text_model_bytes(shape, ranks, 1)(capacity);
      EXPECT_LE(std::abs(slot - slot_parts(mine).total()), 192) << "pieces of the arena are rounded to 64 bytes";
      EXPECT_EQ(forward::TextModel::kept_state_bytes(shape, ranks), kept_state_parts(mine).total());
    }
  }
}

TEST(PlanBytes, ADrafterIsCounted) {
  const model::DrafterShape drafter;  // the published one
  for (const auto& [type, element] :
       {std::pair{forward::CacheType::f32, 4}, {forward::CacheType::bf16, 2}, {forward::CacheType::nvfp4, 2}}) {
    const PlannedBytes bytes = text_model_bytes(flash(), {}, 1, &drafter), without = text_model_bytes(flash(), {}, 1);
    forward::Capacity capacity, records, slots;
    capacity.cache_type = records.cache_type = slots.cache_type = type;
    records.kept_states = 3;
    slots.slots = 2;
    const auto more = [&](const forward::Capacity& larger) {
      return (bytes(larger) - bytes(capacity)) - (without(larger) - without(capacity));
    };
    const int64_t row = drafter.row_bytes(1) / 2 * element;
    EXPECT_EQ(more(records), 3 * 2047 * row);
    EXPECT_GT(more(slots), 2063 * row);
    EXPECT_LT(more(slots), 2063 * row + (4 << 20)) << "its rows in the ring and the activations of a block";
    EXPECT_EQ(forward::TextModel::kept_state_bytes(flash(), {}, true, &drafter, type) -
                  forward::TextModel::kept_state_bytes(flash()),
              2047 * row);
  }
}

TEST(PlanBytes, WithoutTheMtpLayer) {
  forward::Capacity capacity;
  capacity.pages = 9;
  capacity.max_stream_pages = 5;
  capacity.mtp = false;
  EXPECT_EQ(text_model_bytes(flash(), {}, 1, model::cache_row(flash(), model::CacheType::f32))(capacity),
            text_model_bytes(flash(), {}, 1)(capacity));
}

// spec/runtime.md b.4 for a rank of two: 68 MiB of KDA state as there. Its convolution rows are bf16 (2.4 MiB), ours
// f32; the log of the unfinished block is ours alone; raw index rows are those of an unfinished pool, not of a window;
// the head row is one hidden row, not 0.3 MiB.
TEST(PlanBytes, AKeptStateOfARankOfTwo) {
  const StateParts parts = kept_state_parts(model::shape_of_rank(flash(), 0, 2));
  EXPECT_EQ(parts.kda, int64_t{68} << 20);
  EXPECT_NEAR(mib(parts.conv) / 2, 2.4, 0.02);
  EXPECT_EQ(parts.log, int64_t{34} * 15 * 3 * 4096 * 4);
  EXPECT_EQ(parts.index, int64_t{12} * 3 * 2 * 128 * 4);
  EXPECT_EQ(parts.head, 4096 * 4);
  // One rank: 136 MiB (spec/model.md 1.4).
  EXPECT_EQ(kept_state_parts(flash()).kda, int64_t{136} << 20);
}

}  // namespace
}  // namespace tandem::engine::plan_bytes_test
