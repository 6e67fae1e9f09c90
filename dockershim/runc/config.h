/* The part of dockershim-runc that reads and rewrites config.json: text in, text out, and no system calls. */
#pragma once

#include <stddef.h>

struct span {
    const char *at;
    size_t length;
};

/* What a container's config.json asks for. The spans point into it and are raw: the insides of JSON strings. Where lines
   are named, each has the two bytes \n before it. */
struct request {
    int users;                   /* a user namespace; nothing up to `network` counts without it */
    unsigned long uid, gid;      /* the node's ids that are 0 in the user namespace */
    unsigned long size;          /* how many ids it has */
    struct span mounts;          /* lines: destinations of mounts to id-map */
    struct span root;            /* root.path */
    struct span network;         /* the path of the network namespace to join; empty for a new one */
    int early;                   /* a network namespace that is there already; nothing below counts without it */
    struct span prefix;          /* the path of that namespace, without the container's id at its end */
    struct span sysctls;         /* lines: names of the sysctls that are set there already */
};

/* All give NULL, or what is wrong. */

/* Write config.json anew into `out`, with the members that an annotation has for it, by name and in hexadecimal digits:
   OCI hooks, I/O priority, scheduler and files of cgroup v2, which the Engine API has no fields for. `length` is 0 if
   there is none. `work` has as much room as `out`, which is twice as long as config.json. */
const char *add_members(struct span config, char *work, char *out, size_t room, size_t *length);

const char *read_request(struct span config, struct request *request);

/* Write config.json anew into `out`, with the user namespace. `root` is the new root.path, `user` the path of the user
   namespace to join, empty for a new one; both are raw insides of JSON strings. */
const char *amend(struct span config, const struct request *request, const char *root, const char *user, char *out,
                  size_t room, size_t *length);

/* Write config.json anew into `out`, with the network namespace at `path`, the raw inside of a JSON string, and without the
   sysctls that are set there. */
const char *join_network(struct span config, const struct request *request, const char *path, char *out, size_t room,
                         size_t *length);
