/* The typed calls of shardclient.h, one line each. */
#include "client/internal.h"

#define UNARY(verb, Method, Request, Response, response)                                           \
    int shc_##verb(shc_client *client, const Shard__V1__##Request *request,                        \
                   Shard__V1__##Response **out, shc_error *err)                                    \
    {                                                                                              \
        ProtobufCMessage *answer;                                                                  \
        int rc = shc_unary(client, Method, &request->base, &shard__v1__##response##__descriptor,   \
                           &answer, err);                                                          \
        *out = (Shard__V1__##Response *)answer;                                                    \
        return rc;                                                                                 \
    }

#define STREAM(verb, Method, Request, response)                                                    \
    int shc_##verb(shc_client *client, const Shard__V1__##Request *request, shc_stream **out,      \
                   shc_error *err)                                                                 \
    {                                                                                              \
        return shc_stream_open(client, Method, &request->base,                                     \
                               &shard__v1__##response##__descriptor, out, err);                    \
    }

UNARY(create_job, "CreateJob", CreateJobRequest, Job, job)
UNARY(get_job, "GetJob", JobRef, Job, job)
UNARY(list_jobs, "ListJobs", ListJobsRequest, ListJobsResponse, list_jobs_response)
UNARY(cancel_job, "CancelJob", JobRef, Job, job)
UNARY(pause_job, "PauseJob", JobRef, Job, job)
UNARY(resume_job, "ResumeJob", JobRef, Job, job)
UNARY(delete_job, "DeleteJob", JobRef, DeleteJobResponse, delete_job_response)
UNARY(forward_backward, "ForwardBackward", ForwardBackwardRequest, ForwardBackwardResponse,
      forward_backward_response)
UNARY(optim_step, "OptimStep", OptimStepRequest, OptimStepResponse, optim_step_response)
UNARY(train_step, "TrainStep", TrainStepRequest, TrainStepResponse, train_step_response)
UNARY(forward, "Forward", ForwardRequest, ForwardResponse, forward_response)
UNARY(status, "Status", StatusRequest, StatusResponse, status_response)
UNARY(plan, "Plan", PlanRequest, PlanResponse, plan_response)
UNARY(save_checkpoint, "SaveCheckpoint", SaveCheckpointRequest, SaveCheckpointResponse,
      save_checkpoint_response)
UNARY(export_model, "ExportModel", ExportModelRequest, ExportModelResponse, export_model_response)
UNARY(reshard, "Reshard", ReshardRequest, Job, job)

STREAM(generate, "Generate", GenerateRequest, generate_response)
STREAM(evaluate, "Evaluate", EvaluateRequest, evaluate_response)
STREAM(tokenize, "Tokenize", TokenizeRequest, tokenize_response)
STREAM(watch, "Watch", WatchRequest, event)
STREAM(trace, "Trace", TraceRequest, trace_response)
STREAM(watch_status, "WatchStatus", WatchStatusRequest, status_response)

int shc_health(shc_client *client, const char *service,
               Grpc__Health__V1__HealthCheckResponse__ServingStatus *out, shc_error *err)
{
    Grpc__Health__V1__HealthCheckRequest request = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
    ProtobufCMessage *answer;

    request.service = (char *)service;
    int rc = shc_unary(client, "/grpc.health.v1.Health/Check", &request.base,
                       &grpc__health__v1__health_check_response__descriptor, &answer, err);
    if (rc)
        return rc;
    *out = ((Grpc__Health__V1__HealthCheckResponse *)answer)->status;
    shc_message_free(answer);
    return 0;
}
