// The main of the programs in gpu/ on the double of the CUDA runtime: every test has two GPUs of
// its own that do what is enqueued in an order by chance, and ends without races, faults and leaks.
// Emulated kernels cannot say what memory they touch.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include "cuda_double/cuda_double.hpp"

#include <optional>

namespace {

struct Sessions : doctest::IReporter {
    std::optional<cuda_double::Session> session;

    explicit Sessions(doctest::ContextOptions const&) {}
    void test_case_start(doctest::TestCaseData const&) override {
#ifdef GPIPE_EMULATES_KERNELS
        bool const protects = false;
#else
        bool const protects = true;
#endif
        session.emplace(cuda_double::Options{.devices = 2, .seed = 2, .protects = protects});
    }
    void test_case_end(doctest::CurrentTestCaseStats const&) override { session.reset(); }
    void report_query(doctest::QueryData const&) override {}
    void test_run_start() override {}
    void test_run_end(doctest::TestRunStats const&) override {}
    void test_case_reenter(doctest::TestCaseData const&) override {}
    void test_case_exception(doctest::TestCaseException const&) override {}
    void subcase_start(doctest::SubcaseSignature const&) override {}
    void subcase_end() override {}
    void log_assert(doctest::AssertData const&) override {}
    void log_message(doctest::MessageData const&) override {}
    void test_case_skipped(doctest::TestCaseData const&) override {}
};

REGISTER_LISTENER("sessions", 1, Sessions);

} // namespace

int main(int argc, char** argv) { return doctest::Context(argc, argv).run(); }
