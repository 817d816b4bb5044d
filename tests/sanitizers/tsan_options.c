// Default options and suppressions of the thread sanitizer, linked into every program of
// --config=tsan.
//
// The system libraries below are not instrumented and synchronise with futexes and atomics that the
// sanitizer cannot see, so it reports races inside them. Only reports with a frame inside such a
// library are suppressed; a race between two places of our own code is always reported.

const char *__tsan_default_options(void);
const char *__tsan_default_suppressions(void);

const char *__tsan_default_options(void)
{
    return "halt_on_error=1:second_deadlock_stack=1:history_size=4:exitcode=66:print_suppressions="
           "0";
}

const char *__tsan_default_suppressions(void)
{
    /* called_from_lib: what they allocate and copy is no access of ours to race with. */
    return "called_from_lib:libgrpc.so\n"
           "called_from_lib:libgpr.so\n"
           "called_from_lib:libstdc++.so\n"
           "race:libgrpc.so\n"
           "race:libgpr.so\n"
           "race:libaddress_sorting.so\n"
           "race:libabsl_\n"
           "mutex:libgrpc.so\n"
           "thread:libgrpc.so\n"
           "deadlock:libgrpc.so\n"
           "signal:libgrpc.so\n"
           "race:libgomp.so\n"
           "race:libdnnl.so\n"
           "thread:libgomp.so\n";
}
