// What a rank is called: by its number, or where several jobs are shown by its job's name, too.

export function rankName(picture, key) {
  const rank = picture.ranks.find((r) => r.key === key);
  const oneJob = new Set(picture.ranks.map((r) => r.job.name)).size === 1;
  const numbers = new Set(picture.ranks.map((r) => r.job.rank));
  return rank && oneJob && numbers.size === picture.ranks.length ? `rank ${rank.job.rank}` : key;
}
