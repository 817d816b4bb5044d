// Default options of the address, leak and undefined-behaviour sanitizers, linked into every
// program of --config=asan. The environment (ASAN_OPTIONS, ...) still overrides single options.

const char *__asan_default_options(void);
const char *__ubsan_default_options(void);
const char *__lsan_default_options(void);

const char *__asan_default_options(void)
{
    return "detect_leaks=1:detect_stack_use_after_return=1:strict_string_checks=1:check_"
           "initialization_order=1:"
           "allocator_may_return_null=1:abort_on_error=0:exitcode=99";
}

const char *__ubsan_default_options(void)
{
    return "print_stacktrace=1:halt_on_error=1:exitcode=99";
}

const char *__lsan_default_options(void)
{
    return "print_suppressions=0";
}
