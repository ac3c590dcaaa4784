/* The desktop's own clock: answers every question for the time of day from a page that the guest agent writes.
 *
 * Role: preloaded into every program of a desktop (/etc/ld.so.preload). The kernel has one CLOCK_REALTIME for all containers; a task that
 * declares its clock gets another one here, the same for all programs, running or started later.
 * Rule: without the page, or while it is all zeros, everything is passed through. No allocation, no lock, no state but the mapping; the page
 * is two words that are each written at once. A declared time counts from CLOCK_MONOTONIC, which a restored snapshot takes up where it was
 * frozen: the clock stands still while the desktop is a snapshot, however long.
 * Deadlines given as a time of day are translated for the kernel. A word over 10^9 s is one: no monotonic clock is 31 years old.
 * Non-goals: file times (the kernel writes them), programs that ask the kernel without libc.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#ifndef PAGE
#define PAGE "/dev/dart-clock"
#endif
#define PAGE_BYTES 4096
#define SECOND INT64_C(1000000000)
#define OLDEST_DAY_S 1000000000

struct page {
    volatile int64_t from_monotonic_ns; /* declared: time of day minus CLOCK_MONOTONIC; 0 is none */
    volatile int64_t from_realtime_ns;  /* else: time of day minus the kernel's CLOCK_REALTIME */
};

static const struct page *page;

#define NEXT(name) ((__typeof__(&name))next(#name, &name##_found))
#define DECLARE(name) static void *name##_found

DECLARE(clock_gettime);
DECLARE(clock_nanosleep);
DECLARE(pthread_cond_timedwait);
DECLARE(pthread_cond_clockwait);
DECLARE(pthread_mutex_timedlock);
DECLARE(pthread_rwlock_timedrdlock);
DECLARE(pthread_rwlock_timedwrlock);
DECLARE(sem_timedwait);
DECLARE(timer_settime);
DECLARE(timerfd_settime);

static void *next(const char *name, void **found)
{
    if (!*found)
        *found = dlsym(RTLD_NEXT, name);
    return *found;
}

__attribute__((constructor)) static void map_page(void)
{
    int file = open(PAGE, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return;
    void *mapped = mmap(NULL, PAGE_BYTES, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (mapped != MAP_FAILED)
        page = mapped;
}

static int64_t kernel_ns(clockid_t clock)
{
    struct timespec now;
    NEXT(clock_gettime)(clock, &now);
    return now.tv_sec * SECOND + now.tv_nsec;
}

/* What is added to the kernel's time of day now. */
static int64_t shift_ns(void)
{
    if (!page)
        return 0;
    int64_t from_monotonic_ns = page->from_monotonic_ns;
    if (from_monotonic_ns)
        return kernel_ns(CLOCK_MONOTONIC) + from_monotonic_ns - kernel_ns(CLOCK_REALTIME);
    return page->from_realtime_ns;
}

static struct timespec split(int64_t ns)
{
    struct timespec time = {ns / SECOND, ns % SECOND};
    if (time.tv_nsec < 0) {
        time.tv_sec -= 1;
        time.tv_nsec += SECOND;
    }
    return time;
}

/* The kernel's word for a deadline, which is the time of day where it can be no other. */
static const struct timespec *for_kernel(const struct timespec *deadline, struct timespec *room)
{
    if (!deadline || deadline->tv_sec < OLDEST_DAY_S)
        return deadline;
    int64_t shift = shift_ns();
    if (!shift || deadline->tv_sec > INT64_MAX / SECOND - 1)
        return deadline;
    int64_t wanted = deadline->tv_sec * SECOND + deadline->tv_nsec;
    if (shift < 0 && wanted > INT64_MAX + shift)
        return deadline;
    *room = split(wanted - shift);
    return room;
}

int clock_gettime(clockid_t clock, struct timespec *time)
{
    if (!page || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE))
        return NEXT(clock_gettime)(clock, time);
    int64_t from_monotonic_ns = page->from_monotonic_ns;
    if (from_monotonic_ns) {
        *time = split(kernel_ns(clock == CLOCK_REALTIME ? CLOCK_MONOTONIC : CLOCK_MONOTONIC_COARSE) + from_monotonic_ns);
        return 0;
    }
    int64_t from_realtime_ns = page->from_realtime_ns;
    int result = NEXT(clock_gettime)(clock, time);
    if (result == 0 && from_realtime_ns)
        *time = split(time->tv_sec * SECOND + time->tv_nsec + from_realtime_ns);
    return result;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone)
{
    struct timespec now;
    if (zone)
        *(struct timezone *)zone = (struct timezone){0, 0};
    clock_gettime(CLOCK_REALTIME, &now);
    time->tv_sec = now.tv_sec;
    time->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *kept)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME_COARSE, &now);
    if (kept)
        *kept = now.tv_sec;
    return now.tv_sec;
}

int timespec_get(struct timespec *time, int base)
{
    if (base != TIME_UTC)
        return 0;
    clock_gettime(CLOCK_REALTIME, time);
    return base;
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *wanted, struct timespec *left)
{
    struct timespec room;
    if ((flags & TIMER_ABSTIME) && clock == CLOCK_REALTIME)
        wanted = for_kernel(wanted, &room);
    return NEXT(clock_nanosleep)(clock, flags, wanted, left);
}

int pthread_cond_timedwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex, const struct timespec *restrict deadline)
{
    struct timespec room;
    return NEXT(pthread_cond_timedwait)(cond, mutex, for_kernel(deadline, &room));
}

int pthread_cond_clockwait(
    pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex, clockid_t clock, const struct timespec *restrict deadline)
{
    struct timespec room;
    return NEXT(pthread_cond_clockwait)(cond, mutex, clock, clock == CLOCK_REALTIME ? for_kernel(deadline, &room) : deadline);
}

int pthread_mutex_timedlock(pthread_mutex_t *restrict mutex, const struct timespec *restrict deadline)
{
    struct timespec room;
    return NEXT(pthread_mutex_timedlock)(mutex, for_kernel(deadline, &room));
}

int pthread_rwlock_timedrdlock(pthread_rwlock_t *restrict lock, const struct timespec *restrict deadline)
{
    struct timespec room;
    return NEXT(pthread_rwlock_timedrdlock)(lock, for_kernel(deadline, &room));
}

int pthread_rwlock_timedwrlock(pthread_rwlock_t *restrict lock, const struct timespec *restrict deadline)
{
    struct timespec room;
    return NEXT(pthread_rwlock_timedwrlock)(lock, for_kernel(deadline, &room));
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict deadline)
{
    struct timespec room;
    return NEXT(sem_timedwait)(semaphore, for_kernel(deadline, &room));
}

int timer_settime(timer_t timer, int flags, const struct itimerspec *restrict wanted, struct itimerspec *restrict old)
{
    struct timespec room;
    struct itimerspec changed;
    if ((flags & TIMER_ABSTIME) && wanted) {
        changed = (struct itimerspec){wanted->it_interval, *for_kernel(&wanted->it_value, &room)};
        wanted = &changed;
    }
    return NEXT(timer_settime)(timer, flags, wanted, old);
}

int timerfd_settime(int file, int flags, const struct itimerspec *wanted, struct itimerspec *old)
{
    struct timespec room;
    struct itimerspec changed;
    if ((flags & TFD_TIMER_ABSTIME) && wanted) {
        changed = (struct itimerspec){wanted->it_interval, *for_kernel(&wanted->it_value, &room)};
        wanted = &changed;
    }
    return NEXT(timerfd_settime)(file, flags, wanted, old);
}
