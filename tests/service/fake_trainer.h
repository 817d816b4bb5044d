/* Stands in for the trainer (daemon/train/trainer.h) where a test is about jobs and not about
 * arithmetic: work takes no time, results are simple, and the test decides when and how it ends. */
#ifndef SHD_TESTS_SERVICE_FAKE_TRAINER_H
#define SHD_TESTS_SERVICE_FAKE_TRAINER_H

#include "daemon/train/trainer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes that a fake plan takes, all in all: 64 MiB of parameters, 64 MiB of gradients and 128 MiB
 * of optimizer state divided by their degrees, and 4 KiB of activations per position. */
#define FAKE_STATE_MIB 64u

/* Called before a work item ends, on the thread that ends it: may change its results. */
typedef void (*fake_hook)(const char *job_name, shd_work *work, void *arg);

/* Manual: work waits for fake_finish. Otherwise a thread of the fake ends it at once. */
void fake_start(int manual, fake_hook hook, void *arg);
/* Joins the thread; no work may be left. */
void fake_stop(void);

/* Every item with micro-batches takes `n` turns from now on (fake_start: 1). */
void fake_turns(unsigned n);

/* Manual: ends the work in flight of the job of this name, or its turn; 0: it has none. */
int fake_finish(const char *job_name);
/* Work kind in flight of the job; -1: none. */
int fake_running(const char *job_name);

/* Work items ended so far, and the largest number on one rank at one moment. */
unsigned fake_ended(void);
unsigned fake_most_on_a_rank(void);
/* Trainers that exist. */
unsigned fake_alive(void);

#ifdef __cplusplus
}
#endif
#endif
