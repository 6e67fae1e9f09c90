/* The system calls of dockershim-runc, which has no C library. Each gives the kernel's answer: an error is negative. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#if defined __x86_64__

enum {
    SYS_read = 0, SYS_write = 1, SYS_close = 3, SYS_mmap = 9, SYS_execve = 59, SYS_exit = 60, SYS_wait4 = 61,
    SYS_kill = 62, SYS_flock = 73, SYS_fchdir = 81, SYS_fchown = 93, SYS_setfsuid = 122, SYS_setfsgid = 123,
    SYS_capget = 125, SYS_capset = 126, SYS_prctl = 157, SYS_mount = 165, SYS_umount2 = 166, SYS_openat = 257,
    SYS_mkdirat = 258, SYS_newfstatat = 262, SYS_renameat = 264, SYS_unshare = 272, SYS_clone = 56,
    SYS_ppoll = 271, SYS_ioctl = 16,
    SYS_getcwd = 79, SYS_chdir = 80, SYS_setns = 308,
};

/* struct stat of the kernel, as far as we read it. */
struct status {
    uint64_t device, inode, links;
    uint32_t mode, uid, gid;
    char rest[144];
};

static inline long call6(long number, long a, long b, long c, long d, long e, long f) {
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    long answer;
    __asm__ volatile("syscall"
                     : "=a"(answer)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return answer;
}

/* The kernel gives argc, argv and the environment on the stack; the ABI wants the stack aligned at a call. */
__asm__(".globl _start\n_start:\n  xor %ebp, %ebp\n  mov %rsp, %rdi\n  and $-16, %rsp\n  call begin\n");

enum { O_DIRECTORY = 0200000, O_NOFOLLOW = 0400000 };

#elif defined __aarch64__

enum {
    SYS_read = 63, SYS_write = 64, SYS_close = 57, SYS_mmap = 222, SYS_execve = 221, SYS_exit = 93, SYS_wait4 = 260,
    SYS_kill = 129, SYS_flock = 32, SYS_fchdir = 50, SYS_fchown = 55, SYS_setfsuid = 151, SYS_setfsgid = 152,
    SYS_capget = 90, SYS_capset = 91, SYS_prctl = 167, SYS_mount = 40, SYS_umount2 = 39, SYS_openat = 56,
    SYS_mkdirat = 34, SYS_newfstatat = 79, SYS_renameat = 38, SYS_unshare = 97, SYS_clone = 220,
    SYS_ppoll = 73, SYS_ioctl = 29,
    SYS_getcwd = 17, SYS_chdir = 49, SYS_setns = 268,
};

struct status {
    uint64_t device, inode;
    uint32_t mode, links, uid, gid;
    char rest[144];
};

static inline long call6(long number, long a, long b, long c, long d, long e, long f) {
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;
    register long x5 __asm__("x5") = f;
    __asm__ volatile("svc 0"
                     : "+r"(x0)
                     : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
                     : "memory");
    return x0;
}

__asm__(".globl _start\n_start:\n  mov x29, #0\n  mov x0, sp\n  bl begin\n");

enum { O_DIRECTORY = 040000, O_NOFOLLOW = 0100000 };

#else
#error "dockershim-runc knows amd64 and arm64"
#endif

/* Alike on both. */
enum { SYS_open_tree = 428, SYS_move_mount = 429, SYS_mount_setattr = 442 };

enum {
    AT_FDCWD = -100, AT_EMPTY_PATH = 0x1000,
    O_RDONLY = 0, O_WRONLY = 1, O_CREAT = 0100, O_TRUNC = 01000, O_APPEND = 02000, O_CLOEXEC = 02000000,
    OPEN_TREE_CLONE = 1, MOVE_MOUNT_F_EMPTY_PATH = 4, MOUNT_ATTR_IDMAP = 0x100000,
    MS_RDONLY = 1, MS_NOSUID = 2, MS_NODEV = 4, MS_NOEXEC = 8, MS_NOATIME = 1024, MS_NODIRATIME = 2048,
    MS_BIND = 4096, MS_PRIVATE = 1 << 18, MS_RELATIME = 1 << 21, MNT_DETACH = 2,
    CLONE_NEWNS = 0x20000, CLONE_NEWUSER = 0x10000000, CLONE_NEWNET = 0x40000000,
    NS_GET_NSTYPE = 0xb703, SIGCHLD = 17, SIGKILL = 9, PR_SET_PDEATHSIG = 1,
    LOCK_EX = 2, S_IFMT = 0170000, S_IFIFO = 010000,
    ENOENT = 2, EEXIST = 17, EINTR = 4,
};

struct mount_attributes {
    uint64_t set, clear, propagation, userns;
};

struct capability_header {
    uint32_t version;
    int32_t pid;
};

struct capability_sets {
    uint32_t effective, permitted, inheritable;
};

enum { CAPABILITY_VERSION_3 = 0x20080522 };

#define call(number, ...) call_(number, __VA_ARGS__, 0, 0, 0, 0, 0, 0)
#define call_(number, a, b, c, d, e, f, ...) \
    call6((number), (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))
