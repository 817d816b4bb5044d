/* The error numbers of shardd, pinned: a number once given never changes its meaning and is never
 * reused, because clients store and compare them. Floor F0; shared by the daemon and the client.
 *
 * Functions return 0 or one of these (negative). On the wire they become a gRPC status code plus
 * the number in the trailing metadata `shd-errno`. */
#ifndef SHD_PROTO_SHD_ERRNO_H
#define SHD_PROTO_SHD_ERRNO_H

enum shd_err {
    SHD_OK = 0,
    SHD_EINVAL = -1,        /* a value the caller gave is wrong            -> INVALID_ARGUMENT */
    SHD_ENOTFOUND = -2,     /* no such job, file, key (or not visible)     -> NOT_FOUND */
    SHD_EEXIST = -3,        /* the name or id is taken                     -> ALREADY_EXISTS */
    SHD_EPERM = -4,         /* the caller may not                          -> PERMISSION_DENIED */
    SHD_ESTATE = -5,        /* not possible in the present state           -> FAILED_PRECONDITION */
    SHD_EFULL = -6,         /* a stated limit is reached: queue, jobs      -> RESOURCE_EXHAUSTED */
    SHD_ENOMEM = -7,        /* device or arena memory does not suffice     -> RESOURCE_EXHAUSTED */
    SHD_EUNSUPPORTED = -8,  /* named setting is not available              -> UNIMPLEMENTED */
    SHD_EIO = -9,           /* the operating system refused input/output   -> INTERNAL */
    SHD_EDATA = -10,        /* a file's contents are not what they must be -> INVALID_ARGUMENT */
    SHD_ECOMM = -11,        /* a collective failed or was aborted          -> ABORTED */
    SHD_ECANCELLED = -12,   /* the job or call was cancelled               -> CANCELLED */
    SHD_ETIMEOUT = -13,     /* a set time limit passed                     -> DEADLINE_EXCEEDED */
    SHD_ENONFINITE = -14,   /* NaN or infinity where a number must be      -> FAILED_PRECONDITION */
    SHD_ESEQUENCE = -15,    /* a sequence number leaves a gap or is old    -> FAILED_PRECONDITION */
    SHD_EUNAVAILABLE = -16, /* the daemon is stopping or not reachable     -> UNAVAILABLE */
    SHD_EINTERNAL = -17,    /* an invariant of the daemon does not hold    -> INTERNAL */
};

#endif
